// The memory of an executable, and the tensors over it. Used by the backends and operator_call.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "exe/executable.h"
#include "memory/mapped_file.h"
#include "memory/tensors.h"

namespace abele::device {

/// Memory of all frames of one group. It starts as zeros and takes no pages until it is written. Throws E0603 if there
/// is not enough memory.
class Region {
 public:
  Region(int64_t frame_bytes, int64_t frames, const std::string& name);
  /// On a device other than the host; its contents are whatever the device's allocator returns.
  Region(int64_t frame_bytes, int64_t frames, c10::Device device, const std::string& name);
  /// In the host's memory, pinned for an accelerator; zero.
  Region(int64_t frame_bytes, int64_t frames, c10::Allocator& pinned, const std::string& name);
  /// In a file, from `offset` on, with fileBytes() bytes.
  Region(int64_t frame_bytes, int64_t frames, const memory::MappedFile& file, int64_t offset);
  static int64_t fileBytes(int64_t frame_bytes, int64_t frames);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  char* frame(int64_t index) const { return data_ + index * frame_bytes_; }
  int64_t bytes() const { return bytes_; }
  bool isInFile() const { return in_file_; }
  /// For regions in a file: loads a frame before its use, and releases it afterwards. Others do nothing.
  void fetch(int64_t frame, bool writes) const;
  void release(int64_t frame) const;
  /// Bytes of its pages that are in memory now.
  int64_t residentBytes() const;
  /// Requests small pages for these bytes of a frame, so that bytes that are never used take no memory.
  void spare(int64_t frame, int64_t begin, int64_t end) const;

 private:
  bool in_file_ = false;
  int64_t frame_bytes_;
  int64_t bytes_;
  char* data_ = nullptr;
  c10::DataPtr allocated_;  // owns data_ if an allocator of torch's returned it: a device's, or one of pinned memory
  void* mapped_ = nullptr;  // the mapping that contains data_
  std::size_t mapped_bytes_ = 0;
};

/// A slot in a call: one tensor for each frame of the slot's group.
struct SlotRef {
  const at::Tensor* frames = nullptr;  // null: absent
  int32_t group = -1;
  const at::Tensor& at(const int32_t* frame_of_group) const { return frames[frame_of_group[group]]; }
  /// Puts another tensor into this frame of the slot. Threads: only the worker that uses the slot.
  void replace(const int32_t* frame_of_group, at::Tensor tensor) const {
    const_cast<at::Tensor&>(at(frame_of_group)) = std::move(tensor);  // the table is not a constant
  }
};

/// Where off-chip groups are: in host memory up to a limit, those first that move most often; the others in a file.
struct OffChipStorage {
  int64_t memory_limit = -1;  // bytes; -1: no limit
  std::string folder;         // for the file; empty: the system's temporary folder
};

/// All tensors of an executable, made once. Every slot has a storage of its own, so ATen's overlap checks find an
/// operand that is written twice through one slot, and ignore dead memory that the plan reuses.
class SlotTable {
 public:
  static constexpr int32_t kAllSpaces = -1, kOffChip = -2;
  /// stage_process: the index of this process in Executable::stage_processes; groups of other processes have no memory
  /// here. device: the device of the memory. space: groups of other memory spaces have no memory here either, and
  /// neither have off-chip groups; kOffChip is the table of the off-chip groups of all spaces. pinned: allocates host
  /// memory that devices copy from and to; may be null. Throws E0603, E0605.
  SlotTable(const exe::Executable& executable, const OffChipStorage& storage, int64_t stage_process = 0,
            c10::Device device = c10::Device(c10::DeviceType::CPU), int32_t space = kAllSpaces,
            c10::Allocator* pinned = nullptr);
  c10::Device device() const { return device_; }
  /// Adds the tensors of the space of `other`, which links read.
  void adopt(const SlotTable& other);
  /// A table like `all`, except that moveFrame() places off-chip groups on the device; until then they have no memory.
  /// Numbers that the host computes with stay in its memory.
  static std::unique_ptr<SlotTable> withMovingGroups(const SlotTable& all, const SlotTable& off_chip);
  void moveFrame(int32_t group, int64_t frame, char* memory);

  SlotRef ref(int32_t slot) const;
  const at::Tensor& tensor(int32_t slot, int64_t frame) const { return tensors_[first_[slot] + frame]; }
  /// Whether instructions of several workers use this slot. Only for tables on accelerators.
  bool isNamedBySeveral(int32_t slot) const { return named_by_several_.at(static_cast<std::size_t>(slot)) != 0; }
  int64_t framesOf(int32_t group) const { return frames_[group]; }
  int64_t groupBytes(int32_t group) const;
  /// The part of a group's bytes that is in memory now, including memory of tensors given to placeIn().
  int64_t groupResidentBytes(int32_t group) const;
  bool isHere(int32_t group) const {
    const bool is_of_process = executable_.processOf(group) < 0 || executable_.processOf(group) == process_;
    return is_of_process && isOfTable(group);
  }
  /// The space of the first worker that touches the group; space 0 for groups without a worker.
  static int32_t spaceOf(const exe::Executable& executable, int32_t group) {
    const int32_t worker = executable.groups[static_cast<std::size_t>(group)].worker;
    return worker < 0 ? 0 : executable.workers[static_cast<std::size_t>(worker)].space;
  }
  /// Null for the caller's memory, and for memory of other processes.
  const Region* region(int32_t group) const { return regions_[group].get(); }
  const std::vector<exe::Slot>& slots() const { return executable_.slots; }
  const Type& typeOf(int32_t slot) const { return executable_.slots[slot].type; }
  /// A tensor that keeps the memory of a persistent slot alive, and may outlive the table.
  at::Tensor sharedTensor(int32_t slot) const;

  /// Puts a persistent slot, with all slots inside it, into the memory of a tensor of the same geometry, and keeps that
  /// memory alive. The slot's own memory takes no pages meanwhile, unless it was written before. An undefined tensor
  /// moves the slot back to its own memory, whose contents are old. Returns false if it cannot move because a slot
  /// inside it extends beyond it.
  bool placeIn(int32_t slot, const at::Tensor& tensor);
  /// The tensor that placeIn() gave to a slot; undefined: the slot is in its own memory.
  const at::Tensor& placedIn(int32_t slot) const;

  /// Points every kInput slot of argument `index` at the memory of micro-batch `frame`.
  void bindInput(int64_t index, int64_t frame, const void* data);
  /// Sets the tensor of a slot in a frame: for an output slot the caller's tensor (undefined: the result is not
  /// needed), or a tensor outside the slot's group.
  void bindOutput(int32_t slot, int64_t frame, at::Tensor tensor) {
    tensors_[first_[slot] + frame] = std::move(tensor);
  }

 private:
  struct InputSlot {
    int32_t slot;
    int64_t offset_bytes;
  };
  SlotTable(const SlotTable&) = default;
  bool isOfTable(int32_t group) const {
    if (space_ == kAllSpaces) return true;
    const bool is_off_chip = executable_.groups[static_cast<std::size_t>(group)].off_chip;
    return space_ == kOffChip ? is_off_chip : !is_off_chip && spaceOf(executable_, group) == space_;
  }
  std::shared_ptr<Region> makeRegion(int32_t group, c10::Allocator* pinned) const;
  void findInputSlots();
  void findNamedBySeveral();
  void sortPersistent();
  void placeInFile(const OffChipStorage& storage);
  /// Throws E0603 if the memory exceeds the machine's.
  void requireRoom() const;

  const exe::Executable& executable_;
  const c10::Device device_;
  const int64_t process_;
  const int32_t space_;
  std::vector<std::shared_ptr<Region>> regions_;  // by group; null for the caller's memory
  std::vector<int64_t> frames_;                   // by group
  std::vector<std::size_t> first_;                // by slot: index of frame 0
  std::vector<at::Tensor> tensors_;
  std::vector<std::vector<InputSlot>> input_slots_;  // by argument
  std::vector<std::vector<int32_t>> persistent_;     // by group: its slots in the order of offsets; filled when needed
  std::unordered_map<int32_t, at::Tensor> placed_;   // by slot: the memory that placeIn() gave it
  std::vector<char> named_by_several_;               // by slot; filled on accelerators
  std::vector<std::vector<int32_t>> moving_;         // by group: slots that moveFrame() moves
};

}  // namespace abele::device
