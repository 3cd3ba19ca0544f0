#include "base/error.h"

#include <string_view>

#include "base/utf8.h"

namespace abele {
namespace {

struct ErrorRow {
  const char* code;
  const char* name;
  const char* summary;
};
constexpr ErrorRow kErrors[] = {
#define ABELE_ERROR(code, name, summary) {#code, name, summary},
#include "abele/errors.def"
#undef ABELE_ERROR
};

// Appends "  found     text". Further lines of the text start under its first character.
void appendField(std::string& out, std::string_view label, std::string_view text) {
  if (text.empty()) return;
  constexpr size_t kColumn = 12;
  out += "\n  ";
  out += label;
  out.append(kColumn - 2 - label.size(), ' ');
  for (char c : text) {
    out += c;
    if (c == '\n') out.append(kColumn, ' ');
  }
}

std::map<std::string, std::string>& phrasesOfLanguage() {
  static auto* phrases = new std::map<std::string, std::string>();
  return *phrases;
}

}  // namespace

void setPhrases(std::map<std::string, std::string> phrases) { phrasesOfLanguage() = std::move(phrases); }
std::string inLanguage(const std::string& cpp) {
  const auto found = phrasesOfLanguage().find(cpp);
  return found == phrasesOfLanguage().end() ? cpp : found->second;
}

const char* errorCodeText(ErrorCode code) { return kErrors[static_cast<int>(code)].code; }
const char* errorName(ErrorCode code) { return kErrors[static_cast<int>(code)].name; }
const char* errorSummary(ErrorCode code) { return kErrors[static_cast<int>(code)].summary; }

Error::Error(ErrorCode code, Message message) : code_(code), message_(std::move(message)) { render(); }

void Error::addContext(std::string line) {
  if (!context_.empty()) context_ += '\n';
  context_ += line;
  render();
}

void Error::render() {
  text_ = cat(errorCodeText(code_), " ", errorName(code_), ": ", message_.what);
  appendField(text_, "at", message_.at);
  appendField(text_, "found", message_.found);
  appendField(text_, "expected", message_.expected);
  appendField(text_, "try", message_.remedy);
  appendField(text_, "in", context_);
  text_ = toUtf8(text_);  // file names are bytes, not always UTF-8
}

void throwUser(ErrorCode code, Message message) { throw UserError(code, std::move(message)); }

void throwDevice(ErrorCode code, Message message, std::string recovery_action) {
  throw DeviceError(code, std::move(message), std::move(recovery_action));
}

void throwInternal(const char* file, int line, const char* condition, std::string detail) {
  std::string_view path(file);
  if (size_t at = path.rfind("src/"); at != std::string_view::npos) path = path.substr(at);
  throw InternalError(ErrorCode::E0001,
                      {.what = detail.empty() ? std::string("an invariant does not hold") : std::move(detail),
                       .at = cat(path, ":", line),
                       .expected = condition,
                       .remedy = "please report this: it is a fault of Abele, not of your program"});
}

}  // namespace abele
