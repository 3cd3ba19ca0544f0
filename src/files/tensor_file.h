// Tensors by name in a file of the safetensors format: 8 bytes of length, a header in JSON, the bytes of the tensors.
// Reads files of other writers too. Our own files have a checksum of each tensor in the header's metadata.
// Source: the format's description at huggingface.co/docs/safetensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/open_file.h"
#include "session/stored_tensor.h"

namespace abele::files {

struct TensorFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes one tensor after the other, and copies only tensors that are not dense. After a failure the file is the
/// complete old or new one (writeWholeFile). Makes missing folders. Throws E0712 if the file cannot be written or a
/// tensor has no memory.
void writeTensorFile(const std::string& path, const TensorFile& file);
/// The same for stored tensors, each of which is read twice, one at a time.
void writeTensorFile(const std::string& path, const session::StoredTensors& tensors,
                     const std::map<std::string, std::string>& metadata);
/// Reads all tensors of a file. Throws E0712 if it cannot be read, E0501 if it is damaged or of another format.
TensorFile readTensorFile(const std::string& path);

/// A tensor's entry in the header of a file.
struct TensorEntry {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;
  uint64_t begin = 0, bytes = 0;  // position and size in the file
  std::string checksummed;        // text that the checksum covers in addition to the tensor's bytes
  std::string checksum;           // empty in files of other writers
};

/// A file whose tensors stay in it until they are read, one at a time. Threads: safe.
class TensorFileReader {
 public:
  /// Reads and checks the header. Throws the errors of readTensorFile.
  explicit TensorFileReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorEntry>& entries() const { return entries_; }
  /// The file's metadata without our own entries.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Throws E0712; E0501 if the contents do not match the checksum.   Requires: the entry exists.
  at::Tensor read(const std::string& name) const;
  /// Reads into this memory.   Requires: contiguous, on the CPU, of the entry's type and size.
  void readInto(const std::string& name, const at::Tensor& tensor) const;
  /// Reads a part of the contents without a check of the checksum. Throws E0712.   Requires: this many bytes follow
  /// `begin`.
  void readPart(const std::string& name, uint64_t begin, char* into, uint64_t bytes) const;
  /// Checks the contents in pieces without keeping them. Throws the errors of read().
  void requireWhole(const std::string& name) const;

 private:
  OpenFile file_;
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace abele::files
