// The machine that a pipeline is priced on: which devices share memory, the links between the others, and what messages
// and gradient sums take on them. Torch-free; simulate.cc runs the transfers. Docs: docs/simulator.md, "Machines".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace abele::plan {

/// What connects the devices of a group that no link before it connects.
struct Link {
  std::string name;        // "within a host"
  int64_t devices = 0;     // neighbouring devices of a group; 0: all that there are
  int64_t latency_ns = 0;  // of every message
  int64_t bytes_per_s = 0;
  /// One link between each two groups inside this one (two hosts), whose devices take turns; else one between each two
  /// devices.
  bool is_shared = false;
  bool operator==(const Link&) const = default;
};

/// Devices stand in a row; groups are neighbours: a process, a host, a rack.
struct Machine {
  std::string name;
  int64_t space_devices = 1;       // so many neighbours share memory: nothing is copied between them
  std::vector<Link> links;         // from the inside out; empty: all devices share one memory
  int64_t device_bytes = 0;        // memory of a device; 0: not said
  int64_t device_flops_per_s = 0;  // for those who make costs; 0: not said
  bool hasLinks() const { return !links.empty(); }
  /// Index into `links`; -1 where the devices share memory. Throws E0404 where nothing connects them.
  int linkBetween(int64_t a, int64_t b) const;
  bool operator==(const Machine&) const = default;
};

/// Copies of the whole pipeline on devices of their own, which add up their gradients before each update.
struct Replication {
  int64_t replicas = 1;
  /// Replicas of one device of the pipeline are neighbours; else the devices of one replica are.
  bool is_together = false;
  /// A stage's sum begins when its own last backward of the group has ended; else when all stages' have.
  bool is_early = false;
  bool operator==(const Replication&) const = default;
};

/// Bytes that one task makes for another one, of every micro-batch.
struct Handover {
  Task from, to;
  int64_t bytes = 0;
  bool is_placed = false;  // its place with the reader is in the figures of memory already
  bool operator==(const Handover&) const = default;
};

/// A handover between two memory spaces, with its price.
struct Transfer {
  Task from, to;
  int64_t bytes = 0;
  bool is_placed = false;  // as Handover
  int64_t time_ns = 0;     // alone on its link
  int32_t link = 0;        // transfers with the same number take turns
  int64_t from_device = 0, to_device = 0;
  std::string name = {};  // of the link
};

/// latency + bytes / bandwidth, of which `sharers` have a part each.
int64_t messageNs(const Link& link, int64_t bytes, int64_t sharers = 1);

/// A price for every handover between spaces, in their order. All replicas work in step, so one stands for all: the
/// one with the slowest link, and where a link is shared, with all others that use it at the same time.
/// device_of: by stage, within a replica. Throws E0404 for devices that nothing connects.
std::vector<Transfer> transfersOf(const std::vector<Handover>& handovers, const std::vector<int>& device_of,
                                  const Machine& machine, const Replication& replication);

/// By stage, what the sum of its gradients over the replicas takes: a ring through all of them, as fast as its slowest
/// link; 2 (r - 1) messages of 1/r of the bytes. Rings of other devices that share a link have a part of it.
/// gradient_bytes, device_of: by stage.
std::vector<int64_t> ringTimes(const std::vector<int64_t>& gradient_bytes, const std::vector<int>& device_of,
                               const Machine& machine, const Replication& replication);

/// Reads a description of a machine. Throws E0404 with the line of the first fault.
Machine parseMachine(const std::string& json);

}  // namespace abele::plan
