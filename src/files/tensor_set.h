// Tensors by name in one safetensors file, or in the files that an index file names.
// Source: the form of Hugging Face's model repositories: model.safetensors, or model-00001-of-00004.safetensors and so
// on beside model.safetensors.index.json, {"metadata": {...}, "weight_map": {tensor: file}}.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/tensor_file.h"

namespace abele::files {

/// Threads: safe.
class TensorSet {
 public:
  /// path: a file, an index file (*.json), or a folder that has either under the names above. Reads only the headers.
  /// Throws E0712 if the file is missing; E0501 if a file is damaged, or if the index and the files contradict each
  /// other.
  explicit TensorSet(std::string path);

  struct Place {
    const TensorFileReader* file = nullptr;  // null: the set has no such tensor
    const TensorEntry* entry = nullptr;
  };
  Place find(const std::string& name) const;
  const std::map<std::string, Place>& places() const { return places_; }
  /// The metadata of all files. Requires: no two files contradict each other.
  std::map<std::string, std::string> metadata() const;
  const std::string& path() const { return path_; }

 private:
  void readIndex();
  void add(const std::string& name, const std::shared_ptr<TensorFileReader>& file);

  std::string path_;  // path of the file or the index
  std::vector<std::shared_ptr<TensorFileReader>> files_;
  std::map<std::string, Place> places_;
};

/// "stem-00001-of-00004.safetensors" for index 0 of 4.
std::string shardName(std::string_view stem, int64_t index, int64_t count);

/// The part of a set that a process writes.
struct TensorShard {
  int64_t index = 0, count = 1;

  std::string fileName() const;  // "model.safetensors", "model-00001-of-00004.safetensors"
};

/// Marks files that were written together: an entry in the metadata of each of them and of the index.
inline constexpr char kSetMark[] = "abele.set";

/// Writes an index: file_of has the name of each tensor's file, in the same folder. Throws E0712.
void writeTensorIndex(const std::string& path, const std::map<std::string, std::string>& file_of, uint64_t total_bytes,
                      const std::string& mark);

/// Makes these shards the folder's set: writes their index if there are several, and removes files of other sets with
/// names as above. Requires: the shards are written. Throws E0712.
/// shard_of: number of the shard, by tensor.   total_bytes: bytes of all tensors.
void completeTensorSet(const std::string& folder, int64_t shards, const std::map<std::string, int64_t>& shard_of,
                       uint64_t total_bytes, const std::string& mark);

}  // namespace abele::files
