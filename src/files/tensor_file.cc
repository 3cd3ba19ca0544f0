#include "files/tensor_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/safe_numerics.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "base/whole_file.h"
#include "compile/tensors.h"

namespace abele::files {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr size_t kAlignment = 8;  // tensors begin at multiples of it
// In the metadata: checksums of the tensors by name, as a JSON text, and of all other metadata.
constexpr const char* kChecksums = "abele.checksums";
constexpr const char* kMetadataChecksum = "abele.metadata_checksum";

constexpr std::array kTypes{
    std::pair{"F64", at::kDouble},
    std::pair{"F32", at::kFloat},
    std::pair{"F16", at::kHalf},
    std::pair{"BF16", at::kBFloat16},
    std::pair{"F8_E4M3", at::kFloat8_e4m3fn},
    std::pair{"F8_E5M2", at::kFloat8_e5m2},
    std::pair{"C64", at::kComplexFloat},
    std::pair{"I64", at::kLong},
    std::pair{"I32", at::kInt},
    std::pair{"I16", at::kShort},
    std::pair{"I8", at::kChar},
    std::pair{"U64", at::kUInt64},
    std::pair{"U32", at::kUInt32},
    std::pair{"U16", at::kUInt16},
    std::pair{"U8", at::kByte},
    std::pair{"BOOL", at::kBool},
};

[[noreturn]] void refuse(const std::string& path, std::string found) {
  throwUser(ErrorCode::E0501, {.what = "a damaged or foreign file of tensors",
                               .at = path,
                               .found = std::move(found),
                               .expected = "a file in the safetensors format",
                               .remedy = "use a copy of the file, or write it again"});
}

std::string hex(uint64_t number) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

/// The text that a tensor's checksum covers in addition to the bytes: name, type and shape.
std::string checksummedOf(const std::string& name, const Json& entry) {
  return cat(name, "\n", entry.at("dtype").dump(), entry.at("shape").dump());
}

std::string checksum(const std::string& head, std::string_view bytes) {
  return hex(XXH3_64bits_withSeed(bytes.data(), bytes.size(), XXH3_64bits(head.data(), head.size())));
}

std::string checksum(const std::map<std::string, std::string>& metadata) {
  const std::string text = Json(metadata).dump();
  return hex(XXH3_64bits(text.data(), text.size()));
}

std::string_view bytesOf(const at::Tensor& dense) {
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

at::Tensor denseOf(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

/// JSON holds no other texts.
void requireText(const std::string& path, const std::string& text) {
  ABELE_REQUIRE(isUtf8(text), E0712,
                {.what = "a name or a note cannot be stored in a file of tensors",
                 .at = path,
                 .found = text,
                 .expected = "a text in UTF-8"});
}

// --- reading ---------------------------------------------------------------------------------------------------------
uint64_t lengthOf(std::string_view bytes) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return length;
}

/// data: where the tensors begin.
Json headerOf(const OpenFile& file, uint64_t& data) {
  const std::string& path = file.path();
  if (file.size() < kLengthBytes) refuse(path, cat(file.size(), " bytes"));
  std::string text(kLengthBytes, '\0');
  file.read(0, text.data(), text.size());
  const uint64_t length = lengthOf(text);
  if (length > kMostHeaderBytes || length > file.size() - kLengthBytes)
    refuse(path, cat("a header of ", length, " bytes in a file of ", file.size()));
  data = kLengthBytes + length;
  text.resize(length);
  file.read(kLengthBytes, text.data(), text.size());
  Json header = boundedJson(text);
  if (!header.is_object()) refuse(path, "a header that is no JSON object, or has a name twice");
  return header;
}

std::map<std::string, std::string> metadataOf(const std::string& path, const Json& entry) {
  std::map<std::string, std::string> metadata;
  if (!entry.is_object()) refuse(path, "metadata that is no JSON object");
  for (const auto& [name, value] : entry.items()) {
    if (!value.is_string()) refuse(path, cat("metadata ", name, " that is no text"));
    metadata.emplace(name, value.get<std::string>());
  }
  return metadata;
}

/// A number of the header that counts something.
uint64_t countOf(const std::string& path, const std::string& name, const Json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX)
    refuse(path, cat(name, " with ", value.dump(-1, ' ', false, Json::error_handler_t::replace), " for a number"));
  return value.get<uint64_t>();
}

/// data: where the tensors begin; bytes: all that they have.
void takePlace(const std::string& path, const std::string& name, const Json& entry, uint64_t data, uint64_t bytes,
               TensorEntry& tensor) {
  const auto given = entry.find("data_offsets");
  if (given == entry.end() || !given->is_array() || given->size() != 2) refuse(path, cat(name, " without a place"));
  const uint64_t begin = countOf(path, name, (*given)[0]), end = countOf(path, name, (*given)[1]);
  if (begin > end || end > bytes) refuse(path, cat(name, " at the bytes ", begin, " to ", end, " of ", bytes));
  tensor.begin = data + begin;
  tensor.bytes = end - begin;
}

void takeType(const std::string& path, const std::string& name, const Json& entry, TensorEntry& tensor) {
  const auto type = entry.find("dtype"), shape = entry.find("shape");
  if (type == entry.end() || !type->is_string() || shape == entry.end() || !shape->is_array())
    refuse(path, cat(name, " without a type or a shape"));
  const auto known = std::ranges::find(kTypes, type->get<std::string>(), [](const auto& t) { return t.first; });
  if (known == kTypes.end()) refuse(path, cat(name, " of the type ", type->get<std::string>()));
  tensor.type = known->second;
  uint64_t size = c10::elementSize(tensor.type);
  bool fits = true;
  for (const Json& dimension : *shape) {
    tensor.sizes.push_back(static_cast<int64_t>(countOf(path, name, dimension)));
    fits = !c10::mul_overflows(size, static_cast<uint64_t>(tensor.sizes.back()), &size) && fits;
  }
  if (!fits || size != tensor.bytes)
    refuse(path, cat(name, " of ", type->get<std::string>(), shape->dump(), " in ", tensor.bytes, " bytes"));
  tensor.checksummed = checksummedOf(name, entry);
}

/// Takes our own entries out of the metadata, and what they say of the tensors to these.
void takeChecksums(const std::string& path, std::map<std::string, std::string>& metadata,
                   std::map<std::string, TensorEntry>& entries) {
  const auto listed = metadata.extract(kChecksums), other = metadata.extract(kMetadataChecksum);
  if (listed.empty() != other.empty()) refuse(path, "a part of its checksums");
  if (listed.empty()) return;  // others wrote it
  if (checksum(metadata) != other.mapped()) refuse(path, "metadata with another checksum");
  const Json checksums = boundedJson(listed.mapped());
  if (!checksums.is_object() || checksums.size() != entries.size()) refuse(path, "checksums of other tensors");
  for (auto& [name, entry] : entries) {
    const auto expected = checksums.find(name);
    if (expected == checksums.end() || !expected->is_string() || expected->get<std::string>().empty())
      refuse(path, cat(name, " with another checksum"));
    entry.checksum = expected->get<std::string>();
  }
}

}  // namespace

TensorFileReader::TensorFileReader(const std::string& path) : file_(path) {
  uint64_t data = 0;
  const Json header = headerOf(file_, data);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = metadataOf(path, entry);
      continue;
    }
    if (!entry.is_object()) refuse(path, cat(name, " that is no JSON object"));
    TensorEntry& tensor = entries_[name];
    takePlace(path, name, entry, data, file_.size() - data, tensor);
    takeType(path, name, entry, tensor);
  }
  // Each byte belongs to exactly one tensor.
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const auto& [name, entry] : entries_) places.emplace_back(entry.begin, entry.begin + entry.bytes);
  std::ranges::sort(places);
  uint64_t end = data;
  for (const auto& [begin, behind] : places) {
    if (begin != end) refuse(path, "tensors that overlap or leave holes");
    end = behind;
  }
  if (end != file_.size()) refuse(path, cat(file_.size() - end, " bytes behind its tensors"));
  takeChecksums(path, metadata_, entries_);
}

void TensorFileReader::readInto(const std::string& name, const at::Tensor& tensor) const {
  const TensorEntry& entry = entries_.at(name);
  file_.read(entry.begin, static_cast<char*>(tensor.mutable_data_ptr()), entry.bytes);
  if (!entry.checksum.empty() && checksum(entry.checksummed, bytesOf(tensor)) != entry.checksum)
    refuse(path(), cat(name, " with another checksum"));
}

void TensorFileReader::readPart(const std::string& name, uint64_t begin, char* into, uint64_t bytes) const {
  file_.read(entries_.at(name).begin + begin, into, bytes);
}

void TensorFileReader::requireWhole(const std::string& name) const {
  const TensorEntry& entry = entries_.at(name);
  if (entry.checksum.empty()) return;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset_withSeed(state.get(), XXH3_64bits(entry.checksummed.data(), entry.checksummed.size()));
  std::string piece(std::min<uint64_t>(entry.bytes, kPieceBytes), '\0');
  for (uint64_t done = 0; done < entry.bytes; done += piece.size()) {
    piece.resize(std::min<uint64_t>(entry.bytes - done, kPieceBytes));
    file_.read(entry.begin + done, piece.data(), piece.size());
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
  }
  if (hex(XXH3_64bits_digest(state.get())) != entry.checksum) refuse(path(), cat(name, " with another checksum"));
}

at::Tensor TensorFileReader::read(const std::string& name) const {
  const TensorEntry& entry = entries_.at(name);
  at::Tensor tensor = at::empty(entry.sizes, at::TensorOptions(entry.type));
  readInto(name, tensor);
  return tensor;
}

TensorFile readTensorFile(const std::string& path) {
  const TensorFileReader reader(path);
  TensorFile file{.tensors = {}, .metadata = reader.metadata()};
  for (const auto& [name, entry] : reader.entries()) file.tensors.emplace(name, reader.read(name));
  return file;
}

// --- writing ---------------------------------------------------------------------------------------------------------
void writeTensorFile(const std::string& path, const TensorFile& file) {
  session::StoredTensors tensors;
  for (const auto& [name, tensor] : file.tensors) tensors.emplace(name, session::stored(tensor));
  writeTensorFile(path, tensors, file.metadata);
}

void writeTensorFile(const std::string& path, const session::StoredTensors& tensors,
                     const std::map<std::string, std::string>& metadata) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  for (const auto& [name, text] : metadata) {
    requireText(path, name);
    requireText(path, text);
  }
  Json header = Json::object(), checksums = Json::object();
  header["__metadata__"] = Json(metadata);
  uint64_t position = 0;
  for (const auto& [name, each] : tensors) {
    const at::Tensor tensor = each.read();
    ABELE_REQUIRE(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta(), E0712,
                  {.what = cat("the tensor ", name, " has no memory to write"),
                   .at = path,
                   .remedy = "write dense tensors that have memory"});
    compile::requireMemory(tensor, name);
    requireText(path, name);
    const auto known = std::ranges::find(kTypes, tensor.scalar_type(), [](const auto& t) { return t.second; });
    ABELE_REQUIRE(known != kTypes.end() && name != "__metadata__", E0712,
                  {.what = cat("the tensor ", name, " cannot be stored in a file of tensors"),
                   .at = path,
                   .found = c10::toString(tensor.scalar_type()),
                   .expected = "a type of the safetensors format",
                   .remedy = "convert it before it is written"});
    Json& entry = header[name];
    entry["dtype"] = known->first;
    entry["shape"] = tensor.sizes().vec();
    entry["data_offsets"] = {position, position + tensor.nbytes()};
    position += tensor.nbytes();
    checksums[name] = checksum(checksummedOf(name, entry), bytesOf(denseOf(tensor)));
  }
  header["__metadata__"][kChecksums] = checksums.dump();
  header["__metadata__"][kMetadataChecksum] = checksum(metadata);
  std::string text = header.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  writeWholeFile(path, [&](const WritePart& write) {
    write(length);
    write(text);
    for (const auto& [name, each] : tensors) {
      const at::Tensor dense = denseOf(each.read());
      write(bytesOf(dense));
    }
  });
}

}  // namespace abele::files
