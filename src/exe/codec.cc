// .abx, version 1: docs/executable.md. One description of the fields serves both directions.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "exe/executable.h"

namespace abele::exe {
namespace {

constexpr char kMagic[] = {'A', 'B', 'E', 'L', 'E', 'A', 'B', 'X'};
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = sizeof kMagic + 4 + 8 + 8;  // magic, version, payload size, checksum

[[noreturn]] void reject(std::string what, std::string found = {}, std::string expected = {}) {
  throwUser(ErrorCode::E0501, {.what = std::move(what),
                               .found = std::move(found),
                               .expected = std::move(expected),
                               .remedy = "make the executable again with this version of Abele"});
}

template <class Int>
Int littleEndian(Int value) {
  if constexpr (std::endian::native == std::endian::little) return value;
  Int out = 0;
  for (size_t i = 0; i < sizeof(Int); ++i) out |= ((value >> (8 * i)) & 0xff) << (8 * (sizeof(Int) - 1 - i));
  return out;
}

class Writer {
 public:
  static constexpr bool kReads = false;
  template <class T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  void operator()(T& value) {
    using Raw = std::make_unsigned_t<std::conditional_t<std::is_same_v<T, bool>, uint8_t, typename Int<T>::type>>;
    const Raw raw = littleEndian(static_cast<Raw>(value));
    out_.append(reinterpret_cast<const char*>(&raw), sizeof raw);
  }
  void operator()(double& value) {
    uint64_t bits = std::bit_cast<uint64_t>(value);
    (*this)(bits);
  }
  void operator()(std::string& text) {
    uint64_t n = text.size();
    (*this)(n);
    out_ += text;
  }
  uint64_t count(uint64_t n) {
    (*this)(n);
    return n;
  }
  std::string take() { return std::move(out_); }

 private:
  template <class T, bool = std::is_enum_v<T>>
  struct Int {
    using type = std::underlying_type_t<T>;
  };
  template <class T>
  struct Int<T, false> {
    using type = T;
  };
  std::string out_;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
    requires(std::is_integral_v<T>)
  void operator()(T& value) {
    using Raw = std::make_unsigned_t<std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>;
    Raw raw;
    std::memcpy(&raw, take(sizeof raw).data(), sizeof raw);
    raw = littleEndian(raw);
    if (std::is_same_v<T, bool> && raw > 1) reject("a flag that is neither 0 nor 1");
    value = static_cast<T>(raw);
  }
  template <class T>
    requires(std::is_enum_v<T>)
  void operator()(T& value) {
    std::underlying_type_t<T> raw;
    (*this)(raw);
    if (!isKnown(static_cast<T>(raw)))
      reject("an enumerator that this version does not know", cat(static_cast<int>(raw)));
    value = static_cast<T>(raw);
  }
  void operator()(double& value) {
    uint64_t bits;
    (*this)(bits);
    value = std::bit_cast<double>(bits);
  }
  void operator()(std::string& text) {
    uint64_t n;
    (*this)(n);
    text = take(n);
  }
  // Every element takes a byte at least, so a damaged count cannot ask for more memory than a few times the file.
  uint64_t count(uint64_t) {
    uint64_t n;
    (*this)(n);
    if (n > bytes_.size() - at_) reject("a list longer than the file");
    return n;
  }
  bool atEnd() const { return at_ == bytes_.size(); }

 private:
  static bool isKnown(Arg::Kind k) { return k <= Arg::Kind::kNumber; }
  static bool isKnown(GroupKind k) { return k <= GroupKind::kOutput; }
  static bool isKnown(Direction d) { return d <= Direction::kUpdate; }
  static bool isKnown(ExternalKind k) { return k <= ExternalKind::kState; }
  static bool isKnown(DType d) {
    return (d >= DType::kUInt8 && d <= DType::kBool) || d == DType::kBFloat16 || d == DType::kUndefined;
  }

  std::string_view take(uint64_t n) {
    if (n > bytes_.size() - at_) reject("the file ends too early");
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

// The fields of each struct, in the order of the file.
template <class A>
void visit(A& a, Arg& x) {
  a(x.kind);
  a(x.number_kind);
  a(x.i);
  a(x.d);
  a(x.d2);
  a(x.s);
  visit(a, x.ints);
  visit(a, x.doubles);
  visit(a, x.strings);
}
template <class A>
void visit(A& a, Type& x) {
  a(x.dtype);
  visit(a, x.sizes);
  visit(a, x.strides);
}
template <class A>
void visit(A& a, Group& x) {
  a(x.kind);
  a(x.worker);
  a(x.frames);
  a(x.frame_bytes);
  a(x.name);
}
template <class A>
void visit(A& a, Slot& x) {
  a(x.group);
  a(x.offset_bytes);
  visit(a, x.type);
  a(x.name);
}
template <class A>
void visit(A& a, Wait& x) {
  a(x.segment);
  a(x.completions);
}
template <class A>
void visit(A& a, External& x) {
  a(x.name);
  a(x.kind);
  a(x.slot);
  a(x.owner);
  a(x.initial);
}
template <class A, class T>
  requires(std::is_arithmetic_v<T> || std::is_same_v<T, std::string>)
void visit(A& a, T& x) {
  a(x);
}

template <class A, class T>
void visit(A& a, std::vector<T>& list) {
  const uint64_t n = a.count(list.size());
  if constexpr (A::kReads) {
    list.clear();
    for (uint64_t i = 0; i < n; ++i) visit(a, list.emplace_back());
  } else {
    for (T& item : list) visit(a, item);
  }
}

template <class A>
void visit(A& a, Instruction& x) {
  a(x.op);
  visit(a, x.args);
  visit(a, x.results);
  visit(a, x.writes);
  a(x.random_draws);
  a(x.random_offset);
  a(x.source);
}
template <class A>
void visit(A& a, Segment& x) {
  a(x.stage);
  a(x.direction);
  a(x.name);
  visit(a, x.instructions);
}
template <class A>
void visit(A& a, Action& x) {
  a(x.segment);
  a(x.micro_batch);
  visit(a, x.waits);
}
template <class A>
void visit(A& a, WorkerProgram& x) {
  a(x.device);
  visit(a, x.actions);
}
template <class A>
void visit(A& a, Executable& x) {
  a(x.training);
  a(x.device_iterations);
  a(x.accumulation);
  a(x.micro_batches);
  a(x.random_draws);
  visit(a, x.groups);
  visit(a, x.slots);
  visit(a, x.segments);
  visit(a, x.workers);
  visit(a, x.externals);
  visit(a, x.input_slots);
  visit(a, x.output_slots);
  visit(a, x.sources);
}

}  // namespace

std::string encode(const Executable& executable) {
  Writer payload;
  // The fields are described once, for reading and writing, hence not const; a Writer changes nothing.
  visit(payload, const_cast<Executable&>(executable));
  const std::string bytes = payload.take();
  Writer header;
  uint32_t version = kVersion;
  uint64_t size = bytes.size(), checksum = XXH64(bytes.data(), bytes.size(), 0);
  header(version);
  header(size);
  header(checksum);
  return std::string(kMagic, sizeof kMagic) + header.take() + bytes;
}

Executable decode(const std::string& bytes) {
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
    reject("not an Abele executable", cat(bytes.size(), " bytes"), "a file that starts with ABELEABX");
  Reader header(std::string_view(bytes).substr(sizeof kMagic, kHeaderBytes - sizeof kMagic));
  uint32_t version;
  uint64_t size, checksum;
  header(version);
  header(size);
  header(checksum);
  if (version != kVersion) reject("another version of the format", cat(version), cat(kVersion));
  const std::string_view payload = std::string_view(bytes).substr(kHeaderBytes);
  if (size != payload.size()) reject("a truncated or padded file", cat(payload.size(), " bytes"), cat(size, " bytes"));
  if (XXH64(payload.data(), payload.size(), 0) != checksum) reject("a damaged file: the checksum does not match");
  Reader reader(payload);
  Executable executable;
  visit(reader, executable);
  if (!reader.atEnd()) reject("bytes behind the end");
  const auto findings = verify(executable);
  if (!findings.empty()) reject(cat("an executable with ", findings.size(), " contradictions"), findings.front());
  return executable;
}

}  // namespace abele::exe
