// The memory of an executable and the tensors over it. Used by the backends and operator_call.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "exe/executable.h"
#include "runtime/memory/mapped_file.h"
#include "runtime/memory/tensors.h"

namespace abele::runtime {

/// Memory of one group, all frames; zeros, that take no room until they are written. Throws E0603 when there is not
/// enough.
class Region {
 public:
  Region(int64_t frame_bytes, int64_t frames, const std::string& name);
  /// On a device that is not the host; its contents are what the device's allocator gives.
  Region(int64_t frame_bytes, int64_t frames, c10::Device device, const std::string& name);
  /// Of the host, pinned for an accelerator; zeros.
  Region(int64_t frame_bytes, int64_t frames, c10::Allocator& pinned, const std::string& name);
  /// In a file, from `offset` on: fileBytes() of it.
  Region(int64_t frame_bytes, int64_t frames, const MappedFile& file, int64_t offset);
  static int64_t fileBytes(int64_t frame_bytes, int64_t frames);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  char* frame(int64_t index) const { return data_ + index * frame_bytes_; }
  int64_t bytes() const { return bytes_; }
  bool isInFile() const { return in_file_; }
  /// Of regions in a file; nothing happens to others.
  void fetch(int64_t frame, bool writes) const;
  void release(int64_t frame) const;
  /// Bytes of its pages that are in memory by now.
  int64_t residentBytes() const;
  /// The system does not lend large pages for these bytes of a frame: what is never touched shall take no memory.
  void spare(int64_t frame, int64_t begin, int64_t end) const;

 private:
  bool in_file_ = false;
  int64_t frame_bytes_;
  int64_t bytes_;
  char* data_ = nullptr;
  c10::DataPtr allocated_;  // holds data_, where an allocator of torch's gave it: a device's, or of pinned memory
  void* mapped_ = nullptr;  // around data_
  std::size_t mapped_bytes_ = 0;
};

/// A slot as a call sees it: one tensor per frame of its group.
struct SlotRef {
  const at::Tensor* frames = nullptr;  // null: absent
  int32_t group = -1;
  const at::Tensor& at(const int32_t* frame_of_group) const { return frames[frame_of_group[group]]; }
  /// The slot is another tensor in this frame from now on. Threads: the worker's that alone uses it.
  void replace(const int32_t* frame_of_group, at::Tensor tensor) const {
    const_cast<at::Tensor&>(at(frame_of_group)) = std::move(tensor);  // the table is no constant
  }
};

/// Where off-chip groups live: in host memory up to a limit, those that move most often first; the others in a file.
struct OffChipStorage {
  int64_t memory_limit = -1;  // bytes; -1: none, everything is in memory
  std::string folder;         // of the file; empty: the system's temporary folder
};

/// All tensors of an executable, made once. Every slot has a storage of its own: ATen's overlap checks then see only
/// an operand that is written twice under one slot, never dead memory that was planned for reuse.
class SlotTable {
 public:
  static constexpr int32_t kAllSpaces = -1, kOffChip = -2;
  /// stage_process: which of Executable::stage_processes this is; the groups of the others have no memory here. device:
  /// where the memory is. space: groups of other memory spaces have none here either, nor have off-chip groups; those
  /// of all spaces are in the table kOffChip. pinned: of the host's memory, what devices copy from and to comes from
  /// there; may be null. Throws E0603, E0605.
  SlotTable(const exe::Executable& executable, const OffChipStorage& storage, int64_t stage_process = 0,
            c10::Device device = c10::Device(c10::DeviceType::CPU), int32_t space = kAllSpaces,
            c10::Allocator* pinned = nullptr);
  c10::Device device() const { return device_; }
  /// What lies in the space of `other` is found here, too: the same tensors. Links read them.
  void adopt(const SlotTable& other);
  /// As `all`, but an off-chip group is wherever moveFrame() puts it, on the device; until then nowhere. What the host
  /// computes with stays where it is.
  static std::unique_ptr<SlotTable> withMovingGroups(const SlotTable& all, const SlotTable& off_chip);
  void moveFrame(int32_t group, int64_t frame, char* memory);

  SlotRef ref(int32_t slot) const;
  const at::Tensor& tensor(int32_t slot, int64_t frame) const { return tensors_[first_[slot] + frame]; }
  /// Do instructions of several workers name it? Asked of tables on accelerators only.
  bool isNamedBySeveral(int32_t slot) const { return named_by_several_.at(static_cast<std::size_t>(slot)) != 0; }
  int64_t framesOf(int32_t group) const { return frames_[group]; }
  int64_t groupBytes(int32_t group) const;
  /// Of these, what is in memory by now, with what lies in the memory of placeIn()'s tensors.
  int64_t groupResidentBytes(int32_t group) const;
  bool isHere(int32_t group) const {
    const bool is_of_process = executable_.processOf(group) < 0 || executable_.processOf(group) == process_;
    return is_of_process && isOfTable(group);
  }
  /// Of what touches the group first; the first one for groups of nobody.
  static int32_t spaceOf(const exe::Executable& executable, int32_t group) {
    const int32_t worker = executable.groups[static_cast<std::size_t>(group)].worker;
    return worker < 0 ? 0 : executable.workers[static_cast<std::size_t>(worker)].space;
  }
  /// Null for the caller's memory, and for that of other processes.
  const Region* region(int32_t group) const { return regions_[group].get(); }
  const std::vector<exe::Slot>& slots() const { return executable_.slots; }
  const Type& typeOf(int32_t slot) const { return executable_.slots[slot].type; }
  /// A tensor that keeps the memory of a persistent slot alive and may outlive the table.
  at::Tensor sharedTensor(int32_t slot) const;

  /// Puts a persistent slot, with all slots inside it, into the memory of a tensor of its geometry, which stays alive
  /// as long. Its own memory takes no pages meanwhile, unless something wrote there before. Undefined: back into its
  /// own memory, whose contents are old. False: not possible, because a slot reaches beyond it.
  bool placeIn(int32_t slot, const at::Tensor& tensor);
  /// Where is a slot that placeIn() moved? Undefined: in its own memory.
  const at::Tensor& placedIn(int32_t slot) const;

  /// Points every slot of kInput that lies in argument `index` at micro-batch `frame`'s memory.
  void bindInput(int64_t index, int64_t frame, const void* data);
  /// The tensor that a slot is in a frame: the caller's for an output slot (undefined: not wanted), or one that lives
  /// elsewhere than its group.
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
  /// Throws E0603 for more memory than the machine has.
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
  std::vector<std::vector<int32_t>> persistent_;     // by group: its slots in the order of offsets; made when needed
  std::unordered_map<int32_t, at::Tensor> placed_;   // by slot: the memory that it lies in
  std::vector<char> named_by_several_;               // by slot; of accelerators
  std::vector<std::vector<int32_t>> moving_;         // by group: slots that moveFrame() moves
};

}  // namespace abele::runtime
