#include "device/null/null_backend.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/instructions.h"
#include "exe/instruction_slots.h"

namespace abele::device {

class NullBackend::NullDevice : public runtime::Device {
 public:
  explicit NullDevice(NullBackend& backend) : backend_(backend) {}
  void attach() override {}

  void run(const runtime::ActionContext& context) override {
    {
      std::lock_guard lock(backend_.mutex_);
      backend_.events_.push_back({context.worker, context.segment, context.micro_batch});
    }
    if (backend_.hook_) backend_.hook_(context);
    if (!backend_.has_contents_) return;
    // Overwrites transient memory before each task, so that a value which an earlier task left there is never read
    // unnoticed. The parts of a task share it.
    const exe::Segment& segment = backend_.exe_.segments[context.segment];
    const std::tuple task(segment.stage, segment.direction, context.micro_batch, context.step);
    if (task != std::exchange(last_task_, task)) overwriteTransient(context);
    const size_t count = segment.instructions.size();
    for (size_t i = 0; i < count; ++i) backend_.execute(static_cast<int32_t>(i), context);
  }

 private:
  void overwriteTransient(const runtime::ActionContext& context) {
    const exe::Executable& exe = backend_.exe_;
    std::set<int32_t> groups;
    const auto note = [&](int32_t slot) {
      const int32_t group = exe.slots[slot].group;
      if (exe.groups[group].kind == exe::GroupKind::kTransient) groups.insert(group);
    };
    for (const exe::Instruction& instruction : exe.segments[context.segment].instructions) {
      forEachOperand(instruction, note);
      forEachResult(instruction, note);
    }
    for (const int32_t group : groups) {
      Bytes& memory = backend_.memory_[group][static_cast<size_t>(exe.frameOf(group, context.micro_batch))];
      std::fill(memory.begin(), memory.end(), std::byte{0xdd});
    }
  }

  NullBackend& backend_;
  std::tuple<int32_t, exe::Direction, int32_t, int64_t> last_task_{-1, exe::Direction::kForward, -1, -1};
};

std::unique_ptr<runtime::Device> NullBackend::makeDevice(int32_t) { return std::make_unique<NullDevice>(*this); }

void NullBackend::begin(int64_t) {
  if (!has_contents_) return;
  before_step_.assign(memory_.size(), {});
  for (size_t g = 0; g < memory_.size(); ++g)
    if (exe_.groups[g].kind == exe::GroupKind::kPersistent) before_step_[g] = memory_[g];
}

void NullBackend::finish(bool completed) {
  if (!has_contents_ || completed) return;
  for (size_t g = 0; g < memory_.size(); ++g)
    if (exe_.groups[g].kind == exe::GroupKind::kPersistent) memory_[g] = before_step_[g];
}

std::vector<NullBackend::Event> NullBackend::events() const {
  std::lock_guard lock(mutex_);
  return events_;
}

void NullBackend::fetch(const exe::FrameUse& frame) {
  if (fetch_hook_) fetch_hook_(frame);
  std::lock_guard lock(mutex_);
  recorded_moves_.push_back({/*is_fetch=*/true, frame, events_.size()});
}

void NullBackend::release(const exe::FrameUse& frame) {
  std::lock_guard lock(mutex_);
  recorded_moves_.push_back({/*is_fetch=*/false, frame, events_.size()});
}

std::vector<NullBackend::Move> NullBackend::moves() const {
  std::lock_guard lock(mutex_);
  return recorded_moves_;
}

// --- contents --------------------------------------------------------------------------------------------------------
void NullBackend::enableContents() {
  has_contents_ = true;
  memory_.clear();
  for (const exe::Group& g : exe_.groups) {
    const int64_t frames = g.kind == exe::GroupKind::kInput ? exe_.micro_batches : g.frames;
    memory_.emplace_back(static_cast<size_t>(frames), Bytes(static_cast<size_t>(g.frame_bytes), std::byte{0xdd}));
  }
  outputs_.assign(exe_.output_slots.size(), std::vector<Bytes>(static_cast<size_t>(exe_.micro_batches)));
  for (size_t e = 0; e < exe_.externals.size(); ++e) {
    if (exe_.externals[e].slot < 0) continue;
    const Type& type = exe_.slots[exe_.externals[e].slot].type;
    const Bytes contents = Symbol(cat("external/", e)).contents(0, type.numel() * elementBytes(type.dtype));
    for (int32_t r = 0; r < exe_.replicas; ++r) setExternal(static_cast<int32_t>(e), r, contents);
  }
}

void NullBackend::setInput(int32_t argument, int32_t micro_batch, Bytes contents) {
  const int32_t slot = exe_.input_slots[argument];
  if (slot < 0) return;
  Bytes& memory = memory_[exe_.slots[slot].group][static_cast<size_t>(micro_batch)];
  const auto begin = static_cast<size_t>(exe_.slots[slot].offset_bytes);
  memory.resize(std::max(memory.size(), begin + contents.size()));
  std::copy(contents.begin(), contents.end(), memory.begin() + static_cast<std::ptrdiff_t>(begin));
}

void NullBackend::setExternal(int32_t index, int32_t replica, const Bytes& contents) {
  const exe::External& what = exe_.externals[index];
  const Type& type = exe_.slots[what.slot].type;
  for (const int32_t slot : exe::slotsOf(what, replica)) {
    const exe::ExternalCopy* copy = exe::copyWith(what, slot);
    if (!copy || copy->dim < 0) {
      write(slot, 0, contents);
      continue;
    }
    Type range = contiguousType(type.dtype, type.sizes);
    const auto dim = static_cast<size_t>(copy->dim);
    const int64_t begin = copy->begin * range.strides[dim] * elementBytes(type.dtype);
    range.sizes[dim] = exe_.slots[slot].type.sizes[dim];
    write(slot, 0, gather(contents.data() + begin, range));
  }
}

Bytes NullBackend::external(int32_t index, int32_t replica) const {
  const exe::Slot& slot = exe_.slots[exe_.externals[index].slotOf(replica)];
  return gather(memory_[slot.group][0].data() + slot.offset_bytes, slot.type);
}

Bytes& NullBackend::frame(int32_t group, int32_t micro_batch) {
  return memory_[group][static_cast<size_t>(exe_.frameOf(group, micro_batch))];
}

Bytes NullBackend::read(int32_t slot, int32_t micro_batch) {
  const exe::Slot& s = exe_.slots[slot];
  Bytes& memory = frame(s.group, micro_batch);
  ABELE_CHECK(s.offset_bytes + s.type.extentBytes() <= static_cast<int64_t>(memory.size()), "slot ", slot, " (", s.name,
              ") reads past the end of ", exe_.groups[s.group].name);
  return gather(memory.data() + s.offset_bytes, s.type);
}

void NullBackend::write(int32_t slot, int32_t micro_batch, const Bytes& contents) {
  const exe::Slot& s = exe_.slots[slot];
  const exe::GroupKind kind = exe_.groups[s.group].kind;
  ABELE_CHECK(kind != exe::GroupKind::kInput, "slot ", slot, " (", s.name, ") writes an input");
  Bytes& memory = frame(s.group, micro_batch);
  ABELE_CHECK(s.offset_bytes + s.type.extentBytes() <= static_cast<int64_t>(memory.size()), "slot ", slot, " (", s.name,
              ") writes past the end of ", exe_.groups[s.group].name);
  scatter(memory.data() + s.offset_bytes, s.type, contents);
}

void NullBackend::execute(int32_t index, const runtime::ActionContext& context) {
  const exe::Instruction& instruction = exe_.segments[context.segment].instructions[static_cast<size_t>(index)];
  compute(instruction, context);
  if (!write_hook_) return;
  const bool is_emitted = ownOp(instruction.op) == OwnOp::kEmit;
  const auto show = [&](int32_t slot) {
    if (slot >= 0)
      write_hook_(context, index, slot, read(is_emitted ? instruction.args[1].i : slot, context.micro_batch));
  };
  exe::forEachWritten(instruction, show);
}

// The caller runs all processes, so the message was sent already: a receive waits for its send.
void NullBackend::receive(const exe::Instruction& instruction, int32_t micro_batch) {
  std::vector<Bytes> values;
  {
    const std::lock_guard lock(mutex_);
    std::deque<std::vector<Bytes>>& messages = messages_[instruction.args[2].i];
    ABELE_CHECK(!messages.empty(), "nothing was sent over link ", instruction.args[2].i);
    values = std::move(messages.front());
    messages.pop_front();
  }
  ABELE_CHECK(values.size() == instruction.args[0].ints.size(), "a message of ", values.size(), " values");
  for (size_t i = 0; i < values.size(); ++i)
    write(static_cast<int32_t>(instruction.args[0].ints[i]), micro_batch, values[i]);
}

void NullBackend::compute(const exe::Instruction& instruction, const runtime::ActionContext& context) {
  const int32_t k = context.micro_batch;
  const OwnOp own = ownOp(instruction.op);
  if (own == OwnOp::kCopy || own == OwnOp::kTransfer)
    return write(instruction.args[0].i, k, read(instruction.args[1].i, k));
  if (own == OwnOp::kSend) {
    std::vector<Bytes> values;
    for (int64_t slot : instruction.args[0].ints) values.push_back(read(static_cast<int32_t>(slot), k));
    const std::lock_guard lock(mutex_);
    messages_[instruction.args[2].i].push_back(std::move(values));
    return;
  }
  if (own == OwnOp::kReceive) return receive(instruction, k);
  if (own == OwnOp::kEmit) {
    auto target = std::find(exe_.output_slots.begin(), exe_.output_slots.end(), instruction.args[0].i);
    outputs_[target - exe_.output_slots.begin()][k] = read(instruction.args[1].i, k);
    return;
  }
  Symbol symbol(instruction.op);
  const bool first_sum = hasTrait(instruction.op, kSums) && context.group_index == 0;
  for (size_t a = 0; a < instruction.args.size(); ++a) {
    const Arg& arg = instruction.args[a];
    symbol.mixConstants(arg);
    if (first_sum && a == 0) continue;  // the contents of an accumulator before its group do not matter
    forEachId(arg, [&](int64_t slot) { symbol.mix(read(slot, k)); });
  }
  const OwnOpRow* row = ownOpRow(instruction.op);
  if (const int group = row ? row->groupOperand() : -1; group >= 0)
    if (const auto found = numbers_.find(instruction.args[static_cast<size_t>(group)].i); found != numbers_.end())
      for (const auto& [name, value] : found->second) {
        symbol.mix(name);
        symbol.mix(std::bit_cast<int64_t>(value));
      }
  if (instruction.random_draws >= 0) {
    const int64_t at = exe_.globalMicroBatch(k, exe_.segments[context.segment].replica);
    symbol.mix(instruction.random_offset + at * exe_.random_draws);
    if (exe_.normals.count > 0) symbol.mix(instruction.normals.before + at * exe_.normals.count);
  }
  int64_t which = 0;
  auto store = [&](int32_t slot) {
    const int64_t index = which++;
    if (slot < 0) return;
    const Type& type = exe_.slots[slot].type;
    write(slot, k, symbol.contents(index, type.numel() * elementBytes(type.dtype)));
  };
  for (int32_t slot : instruction.writes) store(slot);
  for (const auto& group : instruction.results)
    for (int32_t slot : group) store(slot);
}

}  // namespace abele::device
