#include "device/checks.h"

#include <algorithm>

#include "base/error.h"
#include "memory/tensors.h"

namespace abele::device {
namespace {

void checkExternal(const char* what, const exe::Executable& executable, const exe::External& external,
                   const at::Tensor& host) {
  const Type& type = executable.slots[external.slot].type;
  ABELE_REQUIRE(memory::hasShape(host, type), E0704,
                {.what = cat(what, external.name, " differs from the compiled one"),
                 .found = memory::describe(host),
                 .expected = type.str(),
                 .remedy = "compile the model again"});
}

void checkInput(const exe::Executable& executable, const at::Tensor& input, int64_t index) {
  Type whole = executable.slots[executable.input_slots[index]].type;
  const int64_t parts = executable.micro_batches * executable.inputParts();
  const bool split = parts > 1;
  if (split && !whole.sizes.empty()) whole.sizes[0] *= parts;
  ABELE_REQUIRE(memory::hasShape(input, whole) && !(split && whole.sizes.empty()), E0704,
                {.what = cat("input ", index, " differs from the compiled one"),
                 .found = memory::describe(input),
                 .expected = contiguousType(whole.dtype, whole.sizes).str(),
                 .remedy = "compile the model again"});
}

}  // namespace

void checkOptions(const DeviceOptions& options) {
  ABELE_REQUIRE(options.threads_per_device >= 1, E0702,
                {.what = cat("threads per device is ", options.threads_per_device), .expected = "1 or more"});
}

const exe::External& externalAt(const exe::Executable& executable, int32_t index) {
  ABELE_CHECK(index >= 0 && index < static_cast<int32_t>(executable.externals.size()), "external ", index);
  return executable.externals[index];
}

std::vector<int32_t> slotsOf(const exe::External& external) {
  std::vector<int32_t> slots = external.replica_slots;
  if (slots.empty()) slots.push_back(external.slot);
  for (const exe::ExternalCopy& copy : external.copies) slots.insert(slots.end(), copy.slots.begin(), copy.slots.end());
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return slots;
}

at::Tensor contentsOf(const exe::Executable& executable, const exe::External& external, int32_t slot,
                      const at::Tensor& host) {
  const exe::ExternalCopy* copy = exe::copyWith(external, slot);
  if (!copy || copy->dim < 0) return host;
  return host.narrow(copy->dim, copy->begin, executable.slots[slot].type.sizes[static_cast<size_t>(copy->dim)]);
}

void checkUpload(const exe::Executable& executable, const exe::External& external, const at::Tensor& host) {
  checkExternal("tensor for ", executable, external, host);
}
void checkDownload(const exe::Executable& executable, const exe::External& external, const at::Tensor& host) {
  checkExternal("tensor that receives ", executable, external, host);
}

void checkInputs(const exe::Executable& executable, const std::vector<at::Tensor>& inputs) {
  const int64_t count = executable.numInputs();
  ABELE_REQUIRE(static_cast<int64_t>(inputs.size()) == count, E0704,
                {.what = cat(inputs.size(), " inputs for a model that was compiled for ", count)});
  for (int64_t i = 0; i < count; ++i)
    if (executable.input_slots[i] >= 0) checkInput(executable, inputs[i], i);
}

void checkOutputs(const exe::Executable& executable, const std::vector<std::vector<at::Tensor>>& outputs) {
  ABELE_CHECK(outputs.size() == executable.output_slots.size(), outputs.size(), " outputs of ",
              executable.output_slots.size());
  for (std::size_t target = 0; target < outputs.size(); ++target) {
    const int32_t slot = executable.output_slots[target];
    if (slot < 0) continue;
    for (const at::Tensor& tensor : outputs[target])
      ABELE_CHECK(!tensor.defined() || memory::hasShape(tensor, executable.slots[slot].type), "output ", target, " is ",
                  memory::describe(tensor));
  }
}

}  // namespace abele::device
