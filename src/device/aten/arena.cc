#include "device/aten/arena.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "exe/instruction_slots.h"
#include "memory/reused_pages.h"
#include "memory/steering_allocator.h"

namespace abele::device {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kPage = 4096;  // the smallest page; the kernel rounds to its own
constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t roundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

c10::DataPtr borrow(void* address, c10::Device device) { return {address, device}; }

bool hasMemory(exe::GroupKind kind) { return kind != exe::GroupKind::kInput && kind != exe::GroupKind::kOutput; }

}  // namespace

Region::Region(int64_t frame_bytes, int64_t frames, const std::string& name)
    : frame_bytes_(roundUp(frame_bytes, kAlignment)), bytes_(frame_bytes_ * frames) {
  if (bytes_ == 0) return;
  const bool huge = bytes_ >= 2 * kHugePage;
  const int64_t alignment = huge ? kHugePage : kPage;
  mapped_bytes_ = static_cast<std::size_t>(roundUp(bytes_, kPage) + alignment - kPage);
  mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED)
    throwDevice(ErrorCode::E0603, {.what = cat(name, " needs ", bytes_, " bytes"),
                                   .remedy = "use a smaller micro-batch, or more stages or recomputation"});
  data_ = reinterpret_cast<char*>(roundUp(reinterpret_cast<int64_t>(mapped_), alignment));
  if (huge) madvise(mapped_, mapped_bytes_, MADV_HUGEPAGE);
  memory::addArena(data_, static_cast<std::size_t>(bytes_));
}

Region::Region(int64_t frame_bytes, int64_t frames, const memory::MappedFile& file, int64_t offset)
    : in_file_(true), frame_bytes_(roundUp(frame_bytes, memory::pageBytes())), bytes_(frame_bytes_ * frames) {
  if (bytes_ == 0) return;
  mapped_bytes_ = static_cast<std::size_t>(bytes_);
  mapped_ = data_ = file.map(offset, bytes_);
  memory::addArena(data_, mapped_bytes_);
}

Region::Region(int64_t frame_bytes, int64_t frames, c10::Device device, const std::string& name)
    : frame_bytes_(roundUp(frame_bytes, kAlignment)), bytes_(frame_bytes_ * frames) {
  if (bytes_ == 0) return;
  try {
    const c10::DeviceGuard guard(device);
    allocated_ = c10::GetAllocator(device.type())->allocate(static_cast<std::size_t>(bytes_));
  } catch (const c10::OutOfMemoryError& error) {
    throwDevice(ErrorCode::E0603, {.what = cat(name, " needs ", bytes_, " bytes on ", device.str()),
                                   .found = error.what_without_backtrace(),
                                   .remedy = "use a smaller micro-batch, or more stages or recomputation"});
  }
  data_ = static_cast<char*>(allocated_.get());
}

Region::Region(int64_t frame_bytes, int64_t frames, c10::Allocator& pinned, const std::string& name)
    : frame_bytes_(roundUp(frame_bytes, kAlignment)), bytes_(frame_bytes_ * frames) {
  if (bytes_ == 0) return;
  try {
    allocated_ = pinned.allocate(static_cast<std::size_t>(bytes_));
  } catch (const c10::Error& error) {
    throwDevice(ErrorCode::E0603, {.what = cat(name, " needs ", bytes_, " bytes of pinned memory of the host"),
                                   .found = error.what_without_backtrace(),
                                   .remedy = "use a smaller micro-batch, or keep more tensors on the devices"});
  }
  data_ = static_cast<char*>(allocated_.get());
  std::memset(data_, 0, static_cast<std::size_t>(bytes_));
  memory::addArena(data_, static_cast<std::size_t>(bytes_));
}

int64_t Region::fileBytes(int64_t frame_bytes, int64_t frames) {
  return roundUp(frame_bytes, memory::pageBytes()) * frames;
}

void Region::fetch(int64_t frame, bool writes) const {
  if (in_file_) memory::fetchPages(this->frame(frame), frame_bytes_, writes);
}

void Region::release(int64_t frame) const {
  if (in_file_) memory::releasePages(this->frame(frame), frame_bytes_);
}

int64_t Region::residentBytes() const {
  if (bytes_ == 0 || allocated_) return bytes_;
  const int64_t page = memory::pageBytes();
  std::vector<unsigned char> pages(static_cast<std::size_t>(roundUp(bytes_, page) / page));
  if (mincore(data_, static_cast<std::size_t>(bytes_), pages.data()) != 0) return bytes_;
  return page * std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
}

void Region::spare(int64_t frame, int64_t begin, int64_t end) const {
  if (in_file_ || allocated_ || bytes_ < 2 * kHugePage) return;
  char* first = data_ + frame * frame_bytes_ + begin;
  char* page = first - reinterpret_cast<uintptr_t>(first) % static_cast<uintptr_t>(kPage);
  madvise(page, static_cast<std::size_t>(this->frame(frame) + end - page), MADV_NOHUGEPAGE);
}

Region::~Region() {
  if (!data_ || !allocated_.device().is_cpu()) return;
  memory::removeArena(data_);
  if (allocated_) return;
  memory::ReusedPages* pages = memory::IntoReusedPages::pages();
  if (pages && !in_file_)
    pages->adopt(static_cast<char*>(mapped_), static_cast<char*>(mapped_) + mapped_bytes_);
  else
    munmap(mapped_, mapped_bytes_);
}

SlotTable::SlotTable(const exe::Executable& executable, const OffChipStorage& storage, int64_t stage_process,
                     c10::Device device, int32_t space, c10::Allocator* pinned)
    : executable_(executable),
      device_(device),
      process_(stage_process),
      space_(space),
      regions_(executable.groups.size()) {
  const c10::InferenceMode plain_tensors;
  for (const exe::Group& group : executable.groups)
    frames_.push_back(std::max<int64_t>(hasMemory(group.kind) ? group.frames : executable.micro_batches, 1));
  placeInFile(storage);
  if (device_.is_cpu()) requireRoom();
  for (std::size_t g = 0; g < regions_.size(); ++g) {
    if (hasMemory(executable.groups[g].kind) && isHere(static_cast<int32_t>(g)) && !regions_[g])
      regions_[g] = makeRegion(static_cast<int32_t>(g), pinned);
  }
  std::size_t count = 0;
  for (const exe::Slot& slot : executable.slots) {
    ABELE_CHECK(slot.group >= 0 && slot.group < static_cast<int32_t>(frames_.size()), "slot ", slot.name,
                " without group");
    first_.push_back(count);
    count += static_cast<std::size_t>(frames_[slot.group]);
  }
  tensors_.resize(count);
  for (std::size_t i = 0; i < executable.slots.size(); ++i) {
    const exe::Slot& slot = executable.slots[i];
    const exe::Group& group = executable.groups[slot.group];
    if (group.kind == exe::GroupKind::kOutput || !slot.type.defined()) continue;
    const bool owned = hasMemory(group.kind) && isHere(slot.group);
    if (hasMemory(group.kind) && !owned && space_ != kAllSpaces) continue;  // adopt() brings the groups of other spaces
    ABELE_CHECK(!owned || slot.offset_bytes + slot.type.extentBytes() <= group.frame_bytes, "slot ", slot.name,
                " does not fit in ", group.name);
    for (int64_t frame = 0; frame < frames_[slot.group]; ++frame)
      tensors_[first_[i] + frame] = memory::tensorOver(
          borrow(owned ? regions_[slot.group]->frame(frame) + slot.offset_bytes : nullptr, device_), slot.type);
  }
  findInputSlots();
  if (!device_.is_cpu()) findNamedBySeveral();
}

void SlotTable::findNamedBySeveral() {
  named_by_several_.resize(executable_.slots.size());
  std::vector<int32_t> by(executable_.slots.size(), -1);
  for (std::size_t w = 0; w < executable_.workers.size(); ++w)
    for (const exe::Action& action : executable_.workers[w].actions)
      for (const exe::Instruction& instruction : executable_.segments[action.segment].instructions) {
        const auto add = [&](int32_t slot) {
          const auto worker = static_cast<int32_t>(w);
          if (slot < 0) return;
          const int32_t before = std::exchange(by[slot], worker);
          named_by_several_[slot] = named_by_several_[slot] || (before >= 0 && before != worker);
        };
        exe::forEachOperand(instruction, add);
        exe::forEachResult(instruction, add);
      }
}

std::shared_ptr<Region> SlotTable::makeRegion(int32_t group, c10::Allocator* pinned) const {
  const exe::Group& of = executable_.groups[group];
  if (!device_.is_cpu()) return std::make_shared<Region>(of.frame_bytes, frames_[group], device_, of.name);
  const bool is_copied = of.off_chip || of.kind == exe::GroupKind::kStash;
  if (pinned && is_copied) return std::make_shared<Region>(of.frame_bytes, frames_[group], *pinned, of.name);
  return std::make_shared<Region>(of.frame_bytes, frames_[group], of.name);
}

void SlotTable::adopt(const SlotTable& other) {
  for (std::size_t i = 0; i < executable_.slots.size(); ++i) {
    const int32_t group = executable_.slots[i].group;
    if (!hasMemory(executable_.groups[group].kind) || !other.isHere(group) || isHere(group)) continue;
    std::copy_n(other.tensors_.begin() + static_cast<std::ptrdiff_t>(first_[i]), frames_[group],
                tensors_.begin() + static_cast<std::ptrdiff_t>(first_[i]));
  }
}

std::unique_ptr<SlotTable> SlotTable::withMovingGroups(const SlotTable& all, const SlotTable& off_chip) {
  std::unique_ptr<SlotTable> table(new SlotTable(all));
  const c10::InferenceMode plain_tensors;
  table->moving_.resize(all.executable_.groups.size());
  for (std::size_t i = 0; i < all.executable_.slots.size(); ++i) {
    const exe::Slot& slot = all.executable_.slots[i];
    if (!all.executable_.groups[slot.group].off_chip || !slot.type.defined()) continue;
    if (!all.tensors_[all.first_[i]].defined()) continue;  // another process has it
    const Region* region = off_chip.region(slot.group);
    const auto* home = region ? region->frame(0) + slot.offset_bytes : nullptr;
    const bool has_memory = slot.type.extentBytes() > 0;
    // The host computes with it, so it is not in the region.
    if (has_memory && all.tensors_[all.first_[i]].const_data_ptr() != home) continue;
    table->moving_[slot.group].push_back(static_cast<int32_t>(i));
    for (int64_t frame = 0; frame < all.frames_[slot.group]; ++frame)
      table->tensors_[all.first_[i] + frame] = memory::tensorOver(borrow(nullptr, all.device_), slot.type);
  }
  return table;
}

void SlotTable::moveFrame(int32_t group, int64_t frame, char* memory) {
  for (const int32_t slot : moving_[group])
    if (!tensors_[first_[slot] + frame].is_cpu())  // not what a kernel leaves on the host
      tensors_[first_[slot] + frame].unsafeGetTensorImpl()->unsafe_storage().set_data_ptr_noswap(
          borrow(memory + executable_.slots[slot].offset_bytes, device_));
}

// The system takes memory only when it is written, so a program that can never fit would be killed in its first step.
void SlotTable::requireRoom() const {
  int64_t bytes = 0;
  for (std::size_t g = 0; g < regions_.size(); ++g) {
    const exe::Group& group = executable_.groups[g];
    if (hasMemory(group.kind) && isHere(static_cast<int32_t>(g)) && !regions_[g])
      bytes += group.frame_bytes * frames_[g];
  }
  struct sysinfo machine {};
  if (::sysinfo(&machine) != 0) return;
  const auto room = static_cast<int64_t>((machine.totalram + machine.totalswap) * machine.mem_unit);
  if (bytes > room)
    throwDevice(ErrorCode::E0603, {.what = cat("the program needs ", bytes, " bytes"),
                                   .found = cat("a machine with ", room, " bytes of memory"),
                                   .remedy = "use a smaller micro-batch, or more stages or recomputation"});
}

void SlotTable::placeInFile(const OffChipStorage& storage) {
  if (storage.memory_limit < 0) return;
  std::vector<int64_t> fetches(regions_.size(), 0);  // by group, in one step
  for (const exe::WorkerProgram& worker : executable_.workers)
    for (const exe::Action& action : worker.actions)
      for (const exe::FrameUse& use : action.fetches) ++fetches[use.group];
  std::vector<int32_t> groups;
  for (std::size_t g = 0; g < regions_.size(); ++g)
    if (executable_.groups[g].off_chip && executable_.groups[g].frame_bytes > 0 && isHere(static_cast<int32_t>(g)))
      groups.push_back(static_cast<int32_t>(g));
  std::stable_sort(groups.begin(), groups.end(), [&](int32_t a, int32_t b) { return fetches[a] > fetches[b]; });
  int64_t in_memory = 0, in_file = 0;
  std::erase_if(groups, [&](int32_t g) {
    const int64_t bytes = roundUp(executable_.groups[g].frame_bytes, kAlignment) * frames_[g];
    const bool fits = in_memory + bytes <= storage.memory_limit;
    (fits ? in_memory : in_file) += fits ? bytes : Region::fileBytes(executable_.groups[g].frame_bytes, frames_[g]);
    return fits;
  });
  if (groups.empty()) return;
  const memory::MappedFile file(storage.folder, in_file);  // the mappings keep the file alive
  int64_t offset = 0;
  for (int32_t g : groups) {
    regions_[g] = std::make_shared<Region>(executable_.groups[g].frame_bytes, frames_[g], file, offset);
    offset += regions_[g]->bytes();
  }
}

// An argument's own slot defines its range in the group; other slots inside that range are views of it.
void SlotTable::findInputSlots() {
  input_slots_.resize(executable_.input_slots.size());
  std::vector<std::vector<std::size_t>> inputs_of(executable_.groups.size());
  for (std::size_t i = 0; i < input_slots_.size(); ++i)
    if (const int32_t slot = executable_.input_slots[i]; slot >= 0)
      inputs_of[executable_.slots[slot].group].push_back(i);
  for (std::size_t s = 0; s < executable_.slots.size(); ++s) {
    const exe::Slot& slot = executable_.slots[s];
    if (executable_.groups[slot.group].kind != exe::GroupKind::kInput) continue;
    bool found = false;
    for (std::size_t i : inputs_of[slot.group]) {
      if (found) break;
      const exe::Slot& whole = executable_.slots[executable_.input_slots[i]];
      const int64_t offset = slot.offset_bytes - whole.offset_bytes;
      found = offset >= 0 && offset + slot.type.extentBytes() <= whole.type.extentBytes();
      if (found) input_slots_[i].push_back({static_cast<int32_t>(s), offset});
    }
    ABELE_CHECK(found, "slot ", slot.name, " belongs to no argument");
  }
}

SlotRef SlotTable::ref(int32_t slot) const {
  if (slot < 0) return {};
  ABELE_CHECK(slot < static_cast<int32_t>(first_.size()), "slot ", slot, " of ", first_.size());
  return {&tensors_[first_[slot]], executable_.slots[slot].group};
}

int64_t SlotTable::groupBytes(int32_t group) const { return regions_[group] ? regions_[group]->bytes() : 0; }

int64_t SlotTable::groupResidentBytes(int32_t group) const {
  int64_t bytes = regions_[group] ? regions_[group]->residentBytes() : 0;
  if (executable_.groups[group].kind != exe::GroupKind::kPersistent) return bytes;
  for (const auto& [slot, tensor] : placed_)
    if (executable_.slots[slot].group == group) bytes += executable_.slots[slot].type.extentBytes();
  return bytes;
}

namespace {

// A tensor that also keeps the owner of its memory alive.
template <class Owner>
at::Tensor ownedTensor(const at::Tensor& tensor, Owner owner, const Type& type) {
  c10::DataPtr memory(
      tensor.mutable_data_ptr(), new Owner(std::move(owner)),
      [](void* context) { delete static_cast<Owner*>(context); }, tensor.device());
  return memory::tensorOver(std::move(memory), type);
}

}  // namespace

at::Tensor SlotTable::sharedTensor(int32_t slot) const {
  const Type& type = executable_.slots[slot].type;
  if (const at::Tensor& place = placedIn(slot); place.defined()) return ownedTensor(tensor(slot, 0), place, type);
  return ownedTensor(tensor(slot, 0), regions_[executable_.slots[slot].group], type);
}

void SlotTable::sortPersistent() {
  persistent_.resize(executable_.groups.size());
  for (std::size_t s = 0; s < executable_.slots.size(); ++s)
    if (executable_.groups[executable_.slots[s].group].kind == exe::GroupKind::kPersistent)
      persistent_[executable_.slots[s].group].push_back(static_cast<int32_t>(s));
  for (auto& slots : persistent_)
    std::stable_sort(slots.begin(), slots.end(), [&](int32_t a, int32_t b) {
      return executable_.slots[a].offset_bytes < executable_.slots[b].offset_bytes;
    });
}

const at::Tensor& SlotTable::placedIn(int32_t slot) const {
  static const at::Tensor nowhere;
  const auto found = placed_.find(slot);
  return found == placed_.end() ? nowhere : found->second;
}

bool SlotTable::placeIn(int32_t slot, const at::Tensor& tensor) {
  if (persistent_.empty()) sortPersistent();
  const exe::Slot& whole = executable_.slots[slot];
  const int64_t begin = whole.offset_bytes, end = begin + whole.type.extentBytes();
  const std::vector<int32_t>& slots = persistent_[whole.group];
  const auto first = std::lower_bound(slots.begin(), slots.end(), begin, [&](int32_t s, int64_t offset) {
    return executable_.slots[s].offset_bytes < offset;
  });
  auto last = first;
  for (; last != slots.end() && executable_.slots[*last].offset_bytes < end; ++last)
    if (executable_.slots[*last].offset_bytes + executable_.slots[*last].type.extentBytes() > end) return false;
  const Region& own = *regions_[whole.group];
  if (tensor.defined()) own.spare(0, begin, end);
  char* memory = tensor.defined() ? static_cast<char*>(tensor.mutable_data_ptr()) : own.frame(0) + begin;
  for (auto s = first; s != last; ++s)
    tensors_[first_[*s]].unsafeGetTensorImpl()->unsafe_storage().set_data_ptr_noswap(
        borrow(memory + executable_.slots[*s].offset_bytes - begin, device_));
  if (tensor.defined())
    placed_.insert_or_assign(slot, tensor);
  else
    placed_.erase(slot);
  return true;
}

void SlotTable::bindInput(int64_t index, int64_t frame, const void* data) {
  for (const InputSlot& input : input_slots_[index]) {
    const at::Tensor& tensor = tensors_[first_[input.slot] + frame];
    char* address = static_cast<char*>(const_cast<void*>(data)) + input.offset_bytes;
    tensor.unsafeGetTensorImpl()->unsafe_storage().set_data_ptr_noswap(borrow(address, device_));
  }
}

}  // namespace abele::device
