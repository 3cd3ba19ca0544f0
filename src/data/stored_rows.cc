#include "data/stored_rows.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/util/safe_numerics.h>

#include "base/error.h"
#include "compile/tensors.h"

namespace abele::data {
namespace {

std::string textOf(at::ScalarType type, const std::vector<int64_t>& sizes) {
  return contiguousType(static_cast<DType>(type), sizes).str();
}

/// Returns true if the rows of both can be rows of one tensor.
bool fit(const StoredRows::Tensor& tensor, const files::TensorEntry& entry) {
  int64_t rows = 0;
  return tensor.type == entry.type && !tensor.sizes.empty() && tensor.sizes.size() == entry.sizes.size() &&
         std::equal(tensor.sizes.begin() + 1, tensor.sizes.end(), entry.sizes.begin() + 1) &&
         !c10::add_overflows(tensor.sizes[0], entry.sizes[0], &rows);
}

}  // namespace

StoredRows::StoredRows(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const files::TensorFileReader& file = *files_.emplace_back(std::make_unique<files::TensorFileReader>(path));
    for (const auto& [name, entry] : file.entries()) {
      const auto [at, is_new] =
          tensors_.try_emplace(name, Tensor{.type = entry.type, .sizes = entry.sizes, .parts = {}});
      Tensor& tensor = at->second;
      ABELE_REQUIRE(is_new || fit(tensor, entry), E0801,
                    {.what = cat("parts of the tensor ", name, " in several files are not rows of one tensor"),
                     .at = path,
                     .found = textOf(entry.type, entry.sizes),
                     .expected = cat("rows like those of ", textOf(tensor.type, tensor.sizes), " in ",
                                     tensor.parts.empty() ? path : tensor.parts[0].file->path()),
                     .remedy = "write rows of one type and shape, or other tensors by other names"});
      const int64_t rows = entry.sizes.empty() ? 0 : entry.sizes[0];
      const int64_t before = is_new || tensor.sizes.empty() ? 0 : tensor.sizes[0];
      tensor.parts.push_back({.file = &file, .first_row = before, .rows = rows});
      if (!tensor.sizes.empty()) tensor.sizes[0] = before + rows;
    }
  }
}

void StoredRows::requireWhole(const std::string& name) const {
  for (const Part& part : tensors_.at(name).parts) part.file->requireWhole(name);
}

at::Tensor StoredRows::read(const std::string& name, std::span<const int64_t> rows) const {
  const Tensor& tensor = tensors_.at(name);
  std::vector<int64_t> sizes = tensor.sizes;
  sizes[0] = static_cast<int64_t>(rows.size());
  at::Tensor result = at::empty(sizes, at::TensorOptions(tensor.type));
  const uint64_t row_bytes = rows.empty() ? 0 : result.nbytes() / rows.size();
  char* into = static_cast<char*>(result.mutable_data_ptr());
  for (size_t i = 0, taken = 0; i < rows.size(); i += taken) {
    const auto behind = std::ranges::upper_bound(tensor.parts, rows[i], {}, &Part::first_row);
    const Part& part = *std::prev(behind);
    const int64_t end = part.first_row + part.rows;
    // Reads consecutive rows of a file at once.
    for (taken = 1;
         i + taken < rows.size() && rows[i + taken] == rows[i] + static_cast<int64_t>(taken) && rows[i + taken] < end;)
      ++taken;
    part.file->readPart(name, static_cast<uint64_t>(rows[i] - part.first_row) * row_bytes, into, taken * row_bytes);
    into += taken * row_bytes;
  }
  return result;
}

}  // namespace abele::data
