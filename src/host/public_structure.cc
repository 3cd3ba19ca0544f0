// Structures of tensors as text: reads what abele/structure.h wrote.
#include "abele/structure.h"

#include "base/error.h"

namespace abele::detail {

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

void FormReader::finish() {
  if (!atEnd()) refuse("nothing more");
}

void FormReader::refuse(const std::string& expected) const {
  throwUser(ErrorCode::E0708,
            {.what = cat(what_, " are built otherwise than asked for"),
             .found = cat(form_.substr(0, at_), " | ", atEnd() ? "the end" : form_.substr(at_)),
             .expected = cat(expected, " after the |"),
             .remedy = "t is a tensor, - an empty optional, [...] a tuple, pair, array or vector, {...} a map by key"});
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

}  // namespace abele::detail
