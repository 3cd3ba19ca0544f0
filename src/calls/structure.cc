// Structures of tensors as text: reads the forms that abele/structure.h writes.
#include "abele/structure.h"

#include <array>
#include <charconv>
#include <utility>

#include <ATen/core/Tensor.h>

#include "abele/forward.h"
#include "base/error.h"
#include "calls/forms.h"

namespace abele::detail {
namespace {

void addText(Flat& flat, const std::string& text) { flat.form += cat('=', text.size(), ':', text); }

}  // namespace

Flat::Flat() = default;
Flat::Flat(std::vector<at::Tensor> list, std::string text) : tensors(std::move(list)), form(std::move(text)) {}
Flat::Flat(const Flat&) = default;
Flat::Flat(Flat&&) noexcept = default;
Flat& Flat::operator=(const Flat&) = default;
Flat& Flat::operator=(Flat&&) noexcept = default;
Flat::~Flat() = default;

bool FormReader::skip(char c) {
  if (atEnd() || form_[at_] != c) return false;
  ++at_;
  return true;
}

void FormReader::require(char c, const char* expected) {
  if (!skip(c)) refuse(expected);
}

size_t FormReader::tensor() {
  require('t', "a tensor");
  return tensors_++;
}

std::string FormReader::key() {
  const size_t colon = form_.find(':', at_);
  if (colon == std::string::npos) refuse("a key");
  const size_t length = std::stoul(form_.substr(at_, colon - at_));
  std::string key = form_.substr(colon + 1, length);
  at_ = colon + 1 + length;
  return key;
}

void addConstant(Flat& flat, std::string_view value) { addText(flat, cat('"', value, '"')); }
void addConstant(Flat& flat, bool value) { addText(flat, value ? "true" : "false"); }
void addConstant(Flat& flat, int64_t value) { addText(flat, std::to_string(value)); }
void addConstant(Flat& flat, double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  addText(flat, std::string(text.data(), end));
}

bool FormReader::flag() {
  const size_t start = at_;
  const std::string text = constant("true or false");
  if (text == "true" || text == "false") return text == "true";
  at_ = start;
  refuse("true or false");
}

int64_t FormReader::integer() { return numberOf<int64_t>("an integer"); }
double FormReader::number() { return numberOf<double>("a number"); }

std::string FormReader::text() {
  const size_t start = at_;
  const std::string text = constant("a text");
  if (text.starts_with('"')) return text.substr(1, text.size() - 2);
  at_ = start;
  refuse("a text");
}

std::string FormReader::constant(const char* expected) {
  require('=', expected);
  return key();
}

template <class T>
T FormReader::numberOf(const char* expected) {
  const size_t start = at_;
  const std::string text = constant(expected);
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec == std::errc() && read.ptr == end) return value;
  at_ = start;
  refuse(expected);
}

void FormReader::finish() {
  if (!atEnd()) refuse("nothing more");
}

void FormReader::refuse(const std::string& expected) const {
  throwUser(
      ErrorCode::E0708,
      {.what = cat(what_, " have another structure than requested"),
       .found = calls::formInWords(form_),
       .expected =
           at_ == 0 ? expected : cat(expected, " after ", calls::formInWords(std::string_view(form_).substr(0, at_))),
       .remedy =
           "in brackets is a tuple, struct, array or vector, in braces a map by key; nothing is an empty optional"});
}

void refuseArguments(size_t given, std::optional<size_t> taken) {
  const char* remedy = "call the model with what forward takes; forward can also take a const std::vector<at::Tensor>&";
  if (taken)
    throwUser(ErrorCode::E0708, {.what = "the call does not fit forward",
                                 .found = cat(given, " tensors"),
                                 .expected = std::to_string(*taken),
                                 .remedy = remedy});
  throwUser(ErrorCode::E0708, {.what = cat("forward does not take ", given, " tensors"), .remedy = remedy});
}

void refuseEmptyForward() {
  throwUser(ErrorCode::E0708, {.what = "forward is an empty function",
                               .found = "an empty std::function, or a null pointer",
                               .remedy = "assign it before the model is made"});
}
void refuseEmptyModule() {
  throwUser(ErrorCode::E0708, {.what = "there is no module",
                               .found = "a pointer or a holder without a module",
                               .remedy = "make the module first, e.g. torch::nn::Linear net(4, 2)"});
}

}  // namespace abele::detail
