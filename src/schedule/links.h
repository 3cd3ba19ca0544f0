// The machine that a pipeline is simulated on: which devices share memory, the links between the others, and the times
// that messages and gradient sums take on these links. Torch-free; simulate.cc runs the transfers. Docs:
// docs/simulator.md, "Machines".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace abele::schedule {

/// Connects the devices of a group that no earlier link connects.
struct Link {
  std::string name;        // for example "within a host"
  int64_t devices = 0;     // neighbouring devices of a group; 0: all devices
  int64_t latency_ns = 0;  // time that every message takes in addition to its bytes
  int64_t bytes_per_s = 0;
  /// True: one link between each two groups inside this one (two hosts), whose devices take turns on it. False: one
  /// link between each two devices.
  bool is_shared = false;
  bool operator==(const Link&) const = default;
};

/// Devices are numbered in a row. Groups are neighbours: a process, a host, a rack.
struct Machine {
  std::string name;
  int64_t space_devices = 1;       // this many neighbours share memory, so nothing is copied between them
  std::vector<Link> links;         // from the inside out; empty: all devices share one memory
  int64_t device_bytes = 0;        // memory of a device; 0: unknown
  int64_t device_flops_per_s = 0;  // for tools that make costs; 0: unknown
  bool hasLinks() const { return !links.empty(); }
  /// Index into `links`; -1 if the devices share memory. Throws E0404 if no link connects them.
  int linkBetween(int64_t a, int64_t b) const;
  bool operator==(const Machine&) const = default;
};

/// Copies of the whole pipeline, each on devices of its own. They add up their gradients before each update.
struct Replication {
  int64_t replicas = 1;
  /// True: replicas of one device of the pipeline are neighbours. False: the devices of one replica are.
  bool is_together = false;
  /// True: the sum of a stage begins when its own last backward of the group has ended. False: when those of all stages
  /// have ended.
  bool is_early = false;
  bool operator==(const Replication&) const = default;
};

/// Bytes that one task makes for another task, in every micro-batch.
struct Handover {
  Task from, to;
  int64_t bytes = 0;
  bool is_placed = false;  // the figures of memory include its place with the reader already
  bool operator==(const Handover&) const = default;
};

/// A handover between two memory spaces, with its price.
struct Transfer {
  Task from, to;
  int64_t bytes = 0;
  bool is_placed = false;  // as in Handover
  int64_t time_ns = 0;     // without other transfers on its link
  int32_t link = 0;        // transfers with the same number take turns
  int64_t from_device = 0, to_device = 0;
  std::string name = {};  // name of the link
};

/// latency + bytes / bandwidth, where `sharers` messages share the bandwidth.
int64_t messageNs(const Link& link, int64_t bytes, int64_t sharers = 1);

/// The price of every handover between spaces, in the order of the handovers. All replicas work in step, so one of them
/// represents all: the one with the slowest link. If the link is shared, the price includes all others that use it at
/// the same time. device_of: by stage, within a replica. Throws E0404 for devices that no link connects.
std::vector<Transfer> transfersOf(const std::vector<Handover>& handovers, const std::vector<int>& device_of,
                                  const Machine& machine, const Replication& replication);

/// For each stage, the time to sum its gradients over the replicas. The sum is a ring through all replicas, as fast as
/// its slowest link: 2 (r - 1) messages of 1/r of the bytes. Rings of other devices that cross the same link share its
/// bandwidth. gradient_bytes, device_of: by stage.
std::vector<int64_t> ringTimes(const std::vector<int64_t>& gradient_bytes, const std::vector<int>& device_of,
                               const Machine& machine, const Replication& replication);

/// Reads a description of a machine. what: for messages. Throws E0404 with the line of the first fault.
Machine parseMachine(const std::string& json, const std::string& what = "a machine");

}  // namespace abele::schedule
