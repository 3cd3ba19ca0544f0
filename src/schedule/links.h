// The machine on which a pipeline is simulated: the devices that share memory, the links between the others, and the
// times of messages and gradient sums on these links. Torch-free; simulate.cc runs the transfers. Docs:
// docs/simulator.md, "Machines".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace abele::schedule {

/// A link between all devices of a group that no earlier link connects.
struct Link {
  std::string name;        // for example "within a host"
  int64_t devices = 0;     // neighbouring devices of a group; 0: all devices
  int64_t latency_ns = 0;  // time of a message in addition to the time of its bytes
  int64_t bytes_per_s = 0;
  /// True: there is one link between each two groups inside this one (two hosts), and their devices share it. False:
  /// there is one link between each two devices.
  bool is_shared = false;
  bool operator==(const Link&) const = default;
};

/// Devices are numbered consecutively. Neighbours form groups: a process, a host, a rack.
struct Machine {
  std::string name;
  int64_t space_devices = 1;       // this many neighbours share memory, so nothing is copied between them
  std::vector<Link> links;         // smallest groups first; empty: all devices share one memory
  int64_t device_bytes = 0;        // memory of a device; 0: unknown
  int64_t device_flops_per_s = 0;  // for tools that make costs; 0: unknown
  bool hasLinks() const { return !links.empty(); }
  /// Index into `links`; -1 if the devices share memory. Throws E0404 if no link connects them.
  int linkBetween(int64_t a, int64_t b) const;
  bool operator==(const Machine&) const = default;
};

/// Copies of the whole pipeline, each on its own devices, that add up their gradients before each update.
struct Replication {
  int64_t replicas = 1;
  /// True: the copies of one device of the pipeline are neighbours. False: the devices of one replica are neighbours.
  bool is_together = false;
  /// True: a stage's gradients are added up once its own last backward of the group has ended. False: once those of all
  /// stages have.
  bool is_early = false;
  bool operator==(const Replication&) const = default;
};

/// Bytes that one task sends to another in every micro-batch.
struct Handover {
  Task from, to;
  int64_t bytes = 0;
  bool is_placed = false;  // the memory figures already include its memory at the receiver
  bool operator==(const Handover&) const = default;
};

/// A handover between two memory spaces, with its time.
struct Transfer {
  Task from, to;
  int64_t bytes = 0;
  bool is_placed = false;  // as in Handover
  int64_t time_ns = 0;     // time if its link is otherwise free
  int32_t link = 0;        // transfers with the same number run one after the other
  int64_t from_device = 0, to_device = 0;
  std::string name = {};  // name of the link
};

/// Returns latency + bytes / bandwidth, if `sharers` messages share the bandwidth.
int64_t messageNs(const Link& link, int64_t bytes, int64_t sharers = 1);

/// The transfers for all handovers between spaces, in the order of the handovers. All replicas do the same at the same
/// time, so the time is that of the replica with the slowest link. On a shared link it includes all other transfers
/// that use the link at the same time. device_of: by stage, within a replica. Throws E0404 for devices that no link
/// connects.
std::vector<Transfer> transfersOf(const std::vector<Handover>& handovers, const std::vector<int>& device_of,
                                  const Machine& machine, const Replication& replication);

/// For each stage, the time to sum its gradients over the replicas. The sum is a ring through all replicas, as fast as
/// its slowest link: 2 (r - 1) messages of 1/r of the bytes. Rings that use the same link share its bandwidth.
/// gradient_bytes, device_of: by stage.
std::vector<int64_t> ringTimes(const std::vector<int64_t>& gradient_bytes, const std::vector<int>& device_of,
                               const Machine& machine, const Replication& replication);

/// Reads a description of a machine. what: for messages. Throws E0404 with the line of the first fault.
Machine parseMachine(const std::string& json, const std::string& what = "a machine");

}  // namespace abele::schedule
