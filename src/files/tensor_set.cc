#include "files/tensor_set.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/whole_file.h"

namespace abele::files {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kOneFile = "model.safetensors", kIndex = "model.safetensors.index.json";
constexpr std::string_view kStem = "model-", kEnd = ".safetensors";

[[noreturn]] void refuseIndex(const std::string& path, std::string found) {
  throwUser(ErrorCode::E0501, {.what = "a damaged or foreign index of files of tensors",
                               .at = path,
                               .found = std::move(found),
                               .expected = "{\"metadata\": {...}, \"weight_map\": {tensor: file of the same folder}}",
                               .remedy = "use a copy of the index and of all its files, or write them again"});
}

/// A file of a set beside its index: a name alone leads nowhere else.
bool isPlainName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

std::string fileOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  const fs::path one = fs::path(path) / kOneFile, index = fs::path(path) / kIndex;
  const bool has_one = fs::exists(one, error), has_index = fs::exists(index, error);
  ABELE_REQUIRE(has_one != has_index, E0712,
                {.what = has_one ? "a folder with two sets of tensors" : "a folder without a set of tensors",
                 .at = path,
                 .found = has_one ? cat(kOneFile, " and ", kIndex) : "",
                 .expected = cat(kOneFile, " or ", kIndex),
                 .remedy = "pass the file itself"});
  return (has_one ? one : index).string();
}

std::string textOf(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// "model-00001-of-00004.safetensors", of whatever set.
bool isShardName(std::string_view name) {
  if (!name.starts_with(kStem) || !name.ends_with(kEnd)) return false;
  name.remove_prefix(kStem.size());
  name.remove_suffix(kEnd.size());
  const size_t middle = name.find("-of-");
  const auto isNumber = [](std::string_view text) {
    return text.size() >= 5 && text.find_first_not_of("0123456789") == text.npos;
  };
  return middle != name.npos && isNumber(name.substr(0, middle)) && isNumber(name.substr(middle + 4));
}

}  // namespace

TensorSet::TensorSet(std::string path) : path_(fileOf(path)) {
  if (path_.ends_with(".json")) {
    readIndex();
    return;
  }
  const auto file = std::make_shared<TensorFileReader>(path_);
  files_.push_back(file);
  for (const auto& [name, entry] : file->entries()) places_[name] = {file.get(), &entry};
}

void TensorSet::readIndex() {
  const std::string text = readWholeFile(path_, {}, kMostTextBytes);
  const Json index = boundedJson(text);
  if (!index.is_object()) refuseIndex(path_, "a text that is no JSON object, or has a name twice");
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) refuseIndex(path_, "no weight_map");
  const auto metadata = index.find("metadata");
  if (metadata != index.end() && !metadata->is_object()) refuseIndex(path_, "metadata that is no JSON object");
  std::map<std::string, std::shared_ptr<TensorFileReader>> by_name;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !isPlainName(file.get<std::string>()))
      refuseIndex(path_, cat(name, " in ", textOf(file), " for a file of the same folder"));
    std::shared_ptr<TensorFileReader>& reader = by_name[file.get<std::string>()];
    if (!reader)
      reader = std::make_shared<TensorFileReader>((fs::path(path_).parent_path() / file.get<std::string>()).string());
    add(name, reader);
  }
  const Json mark = metadata == index.end() ? Json() : metadata->value(kSetMark, Json());
  for (const auto& [name, reader] : by_name) {
    files_.push_back(reader);
    for (const auto& [tensor, entry] : reader->entries())
      if (find(tensor).file != reader.get()) refuseIndex(path_, cat("no word of ", tensor, ", which is in ", name));
    const auto own = reader->metadata().find(kSetMark);
    if (mark.is_string() && (own == reader->metadata().end() || own->second != mark.get<std::string>()))
      refuseIndex(path_, cat(name, ", which was written at another time than the index"));
  }
}

void TensorSet::add(const std::string& name, const std::shared_ptr<TensorFileReader>& file) {
  const auto entry = file->entries().find(name);
  if (entry == file->entries().end()) refuseIndex(path_, cat(name, " in ", file->path(), ", which has no such tensor"));
  places_[name] = {file.get(), &entry->second};
}

TensorSet::Place TensorSet::find(const std::string& name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? Place{} : place->second;
}

std::map<std::string, std::string> TensorSet::metadata() const {
  std::map<std::string, std::string> metadata;
  for (const auto& file : files_) metadata.insert(file->metadata().begin(), file->metadata().end());
  return metadata;
}

std::string shardName(std::string_view stem, int64_t index, int64_t count) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "-%05lld-of-%05lld", static_cast<long long>(index + 1),
                static_cast<long long>(count));
  return cat(stem, text.data(), kEnd);
}

std::string TensorShard::fileName() const {
  return count == 1 ? std::string(kOneFile) : shardName("model", index, count);
}

void writeTensorIndex(const std::string& path, const std::map<std::string, std::string>& file_of, uint64_t total_bytes,
                      const std::string& mark) {
  const Json text = {{"metadata", {{"total_size", total_bytes}, {kSetMark, mark}}}, {"weight_map", file_of}};
  writeWholeFile(path, text.dump(2));
}

void completeTensorSet(const std::string& folder, int64_t shards, const std::map<std::string, int64_t>& shard_of,
                       uint64_t total_bytes, const std::string& mark) {
  const fs::path index = fs::path(folder) / kIndex;
  if (shards > 1) {
    std::map<std::string, std::string> file_of;
    for (const auto& [name, shard] : shard_of) file_of.emplace(name, TensorShard{shard, shards}.fileName());
    writeTensorIndex(index.string(), file_of, total_bytes, mark);
  }
  // Only now: until the new set is whole, the files of the old one are all that there is.
  std::vector<fs::path> old{shards > 1 ? fs::path(folder) / kOneFile : index};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    bool is_own = false;
    for (int64_t i = 0; i < shards && !is_own; ++i) is_own = name == TensorShard{i, shards}.fileName();
    if (isShardName(name) && !is_own) old.push_back(entry.path());
  }
  for (const fs::path& path : old) fs::remove(path, error);
}

}  // namespace abele::files
