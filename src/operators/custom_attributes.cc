// CustomAttributes as text and back: name, kind, number of items, items. A text item has its length before it.
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "abele/custom_op.h"
#include "base/error.h"

namespace abele {
namespace {

void put(std::string& out, const std::string& text) { out += cat(text.size(), ":", text); }
void put(std::string& out, int64_t number) { put(out, cat(number)); }
void put(std::string& out, float number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(number));
  put(out, std::string(text));
}

class TextReader {
 public:
  explicit TextReader(const std::string& text) : text_(text) {}
  bool atEnd() const { return at_ >= text_.size(); }
  size_t count() {
    const size_t end = text_.find(':', at_);
    ABELE_CHECK(end != std::string::npos, "attributes without a count");
    const size_t value = std::strtoull(text_.c_str() + at_, nullptr, 10);
    at_ = end + 1;
    return value;
  }
  std::string text() {
    const size_t size = count();
    ABELE_CHECK(size <= text_.size() - at_, "attributes that end early");
    at_ += size;
    return text_.substr(at_ - size, size);
  }
  void read(std::string& value) { value = text(); }
  void read(int64_t& value) { value = std::strtoll(text().c_str(), nullptr, 10); }
  void read(float& value) { value = std::strtof(text().c_str(), nullptr); }
  template <class T>
  void read(std::vector<T>& values) {
    values.resize(count());
    for (T& value : values) read(value);
  }

 private:
  const std::string& text_;
  size_t at_ = 0;
};

template <size_t index = 0>
CustomAttributes::Value valueOf(size_t kind, TextReader& reader) {
  if constexpr (index < std::variant_size_v<CustomAttributes::Value>) {
    if (kind != index) return valueOf<index + 1>(kind, reader);
    std::variant_alternative_t<index, CustomAttributes::Value> value{};
    reader.read(value);
    return value;
  }
  throwInternal(__FILE__, __LINE__, "kind", "attributes of an unknown kind");
}

}  // namespace

const CustomAttributes::Value* CustomAttributes::find(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

void CustomAttributes::refuse(const std::string& name, bool is_there) {
  throwUser(ErrorCode::E0708, {.what = cat("attribute ", name, " of a custom operator"),
                               .found = is_there ? "a value of another type" : "no such attribute"});
}

std::string CustomAttributes::str() const {
  std::string out;
  for (const auto& [name, value] : values_) {
    put(out, name);
    out += cat(value.index(), ":");
    std::visit(
        [&]<class T>(const T& held) {
          if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
            put(out, held);
          } else {
            out += cat(held.size(), ":");
            for (const auto& item : held) put(out, item);
          }
        },
        value);
  }
  return out;
}

CustomAttributes CustomAttributes::parse(const std::string& text) {
  CustomAttributes attributes;
  TextReader reader(text);
  while (!reader.atEnd()) {
    const std::string name = reader.text();
    attributes.set(name, valueOf(reader.count(), reader));
  }
  return attributes;
}

}  // namespace abele
