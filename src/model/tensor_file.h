// Tensors by name in a file of the safetensors format: 8 bytes of length, a header in JSON, the bytes of the tensors.
// Files that others wrote are read too; ours say a checksum of each tensor in the header's metadata.
// Source: the format's description at huggingface.co/docs/safetensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/open_file.h"
#include "session/stored_tensor.h"

namespace abele::host {

struct TensorFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Streams the tensors: at most one of them is in memory twice, where it is not dense. Old file or new one, never half
/// (writeWholeFile). Makes missing folders. Throws E0712 when the file cannot be written or a tensor has no memory.
void writeTensorFile(const std::string& path, const TensorFile& file);
/// The same of tensors that are read one at a time, twice each.
void writeTensorFile(const std::string& path, const StoredTensors& tensors,
                     const std::map<std::string, std::string>& metadata);
/// All tensors of a file. Throws E0712 when the file cannot be read, E0501 when it is something else or damaged.
TensorFile readTensorFile(const std::string& path);

/// What a file's header says of a tensor.
struct TensorEntry {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;
  uint64_t begin = 0, bytes = 0;  // where it is in the file
  std::string checksummed;        // what is part of its checksum beside its bytes
  std::string checksum;           // empty in files that others wrote
};

/// A file whose tensors stay there until somebody reads them, one at a time. Threads: safe.
class TensorFileReader {
 public:
  /// Reads and checks the header. Throws as readTensorFile.
  explicit TensorFileReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorEntry>& entries() const { return entries_; }
  /// Without what we ourselves put there.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Throws E0712; E0501 where the contents have another checksum.   Requires: there is such an entry.
  at::Tensor read(const std::string& name) const;
  /// The same into memory.   Requires: contiguous, on the CPU, of the entry's type and size.
  void readInto(const std::string& name, const at::Tensor& tensor) const;
  /// A part of the contents, whose checksum nobody looks at. Throws E0712.   Requires: there are so many bytes behind
  /// `begin`.
  void readPart(const std::string& name, uint64_t begin, char* into, uint64_t bytes) const;
  /// Reads the contents in pieces and keeps none of them. Throws as read().
  void requireWhole(const std::string& name) const;

 private:
  OpenFile file_;
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Throws E0501 for a file of tensors that is damaged or something else.
[[noreturn]] void refuseTensorFile(const std::string& path, std::string found);

}  // namespace abele::host
