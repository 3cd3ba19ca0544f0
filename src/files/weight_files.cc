#include "files/weight_files.h"

#include <algorithm>
#include <set>

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "base/nearest.h"
#include "compile/tensors.h"

namespace abele::files {
namespace {

std::string entryText(const TensorEntry& entry) {
  return contiguousType(static_cast<DType>(entry.type), entry.sizes).str();
}

std::string tensorText(const at::Tensor& tensor) {
  return contiguousType(static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec()).str();
}

}  // namespace

const std::string* WeightFiles::nameOf(const WeightTarget& target) const {
  const auto name = std::ranges::find_if(target.names, [&](const std::string& n) { return set_.find(n).file; });
  return name == target.names.end() ? nullptr : &*name;
}

void WeightFiles::require(const std::vector<WeightTarget>& targets) const {
  std::vector<std::string> names;
  for (const auto& [name, place] : set_.places()) names.push_back(name);
  std::set<std::string> known;
  for (const WeightTarget& target : targets) {
    known.insert(target.names.begin(), target.names.end());
    if (!nameOf(target)) {
      ABELE_REQUIRE(target.may_be_missing, E0708,
                    {.what = cat("the files have no tensor ", target.names.front()),
                     .at = set_.path(),
                     .found = cat(set_.places().size(), " tensors, none of that name"),
                     .expected = tensorText(target.tensor),
                     .remedy = didYouMean(target.names.front(), names, "load files of this model")});
      continue;
    }
    for (const std::string& name : target.names) {
      const TensorSet::Place place = set_.find(name);
      if (!place.file) continue;
      const bool same_sizes = target.tensor.sizes() == at::IntArrayRef(place.entry->sizes);
      ABELE_REQUIRE(
          same_sizes && (converts_ || place.entry->type == target.tensor.scalar_type()), E0708,
          {.what = cat("the tensor ", name, " of the files has another ", same_sizes ? "type" : "shape"),
           .at = place.file->path(),
           .found = entryText(*place.entry),
           .expected = tensorText(target.tensor),
           .remedy = same_sizes ? "give the model that type, or load with convert" : "load files of this model"});
    }
  }
  for (const auto& [name, place] : set_.places())
    ABELE_REQUIRE(known.contains(name), E0708,
                  {.what = cat("the files have a tensor ", name, " that the model does not have"),
                   .at = place.file->path(),
                   .found = entryText(*place.entry),
                   .expected = cat(targets.size(), " tensors, none of that name"),
                   .remedy = "load files of this model, or leave the tensor out of them"});
}

void WeightFiles::requireWhole(const std::vector<WeightTarget>& targets) const {
  for (const WeightTarget& target : targets)
    if (const std::string* name = target.tensor.is_meta() ? nullptr : nameOf(target))
      set_.find(*name).file->requireWhole(*name);
}

bool WeightFiles::fill(const WeightTarget& target) const {
  const std::string* name = nameOf(target);
  if (!name) return false;
  const at::NoGradGuard no_grad;
  const TensorSet::Place place = set_.find(*name);
  const at::Tensor memory = target.tensor.detach();
  const bool is_direct =
      memory.device().is_cpu() && memory.is_contiguous() && memory.scalar_type() == place.entry->type;
  if (is_direct) {
    compile::requireMemory(memory, *name);
    place.file->readInto(*name, memory);
    if (!target.tensor.is_inference()) target.tensor.unsafeGetTensorImpl()->bump_version();
  } else {
    memory.copy_(place.file->read(*name));
  }
  return true;
}

}  // namespace abele::files
