// Tensors by name in a file of the safetensors format: 8 bytes of length, a header in JSON, the bytes of the tensors.
// Files that others wrote are read too; ours say a checksum of each tensor in the header's metadata.
// Source: the format's description at huggingface.co/docs/safetensors.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace abele::host {

struct TensorFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Streams the tensors: at most one of them is in memory twice, where it is not dense. Old file or new one, never half
/// (writeWholeFile). Makes missing folders. Throws E0712 when the file cannot be written or a tensor has no memory.
void writeTensorFile(const std::string& path, const TensorFile& file);
/// The tensors share the memory that the file was read into. Throws E0712 when the file cannot be read, E0501 when it
/// is something else or damaged.
TensorFile readTensorFile(const std::string& path);

}  // namespace abele::host
