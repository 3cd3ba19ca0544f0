#include "calls/forms.h"

#include <map>
#include <set>

#include "base/cat.h"
#include "calls/form_values.h"

namespace abele::calls {
namespace {

constexpr size_t kMostNested = 256;

/// Steps over "<length>:<text>". Returns the text, or nothing if the form has something else there.
std::optional<std::string_view> stepOverText(std::string_view form, size_t& at) {
  size_t length = 0, digits = 0;
  while (at < form.size() && form[at] >= '0' && form[at] <= '9' && ++digits < 10)
    length = length * 10 + (form[at++] - '0');
  if (digits == 0 || at >= form.size() || form[at] != ':') return std::nullopt;
  ++at;
  if (length > form.size() - at) return std::nullopt;
  const std::string_view text = form.substr(at, length);
  at += length;
  return text;
}

struct Cursor {
  std::string_view form;
  size_t at = 0;
  size_t tensors = 0;  // number of tensors that it has passed

  bool atEnd() const { return at == form.size(); }
  char here() const { return atEnd() ? '\0' : form[at]; }
  std::string_view text() { return *stepOverText(form, at); }
  void skip() {
    const char kind = form[at++];
    if (kind == 't') ++tensors;
    if (kind == '=') text();
    if (kind == '[') {
      while (here() != ']') skip();
      ++at;
    }
    if (kind == '{') {
      while (here() != '}') {
        text();
        skip();
      }
      ++at;
    }
  }
};

/// Adds the names of the tensors in the value at the cursor.
void nameTensors(Cursor& form, const std::string& name, std::vector<std::string>& names) {
  const auto inside = [&](std::string_view key) { return name.empty() ? std::string(key) : cat(name, ".", key); };
  const char kind = form.here();
  if (kind == 't') names.push_back(name);
  if (kind != '[' && kind != '{') return form.skip();
  ++form.at;
  for (size_t i = 0; form.here() != ']' && form.here() != '}'; ++i) {
    const std::string key = kind == '{' ? std::string(form.text()) : std::to_string(i);
    nameTensors(form, inside(key), names);
  }
  ++form.at;
}

FormValue valueOf(Cursor& form) {
  FormValue value{.kind = form.form[form.at++]};
  if (value.kind == '=') value.text = form.text();
  if (value.kind != '[' && value.kind != '{') return value;
  const bool has_keys = value.kind == '{';
  while (form.here() != (has_keys ? '}' : ']')) {
    std::string key(has_keys ? form.text() : "");
    value.items.push_back({std::move(key), valueOf(form)});
  }
  ++form.at;
  return value;
}

bool match(Cursor& compiled, Cursor& given, std::vector<size_t>& order);

bool matchMap(Cursor& compiled, Cursor& given, std::vector<size_t>& order) {
  std::map<std::string_view, Cursor> values;
  while (given.here() != '}') {
    const std::string_view key = given.text();
    values.emplace(key, given);
    given.skip();
  }
  while (compiled.here() != '}') {
    const auto found = values.find(compiled.text());
    if (found == values.end() || !match(compiled, found->second, order)) return false;
    values.erase(found);
  }
  ++compiled.at;
  ++given.at;
  return values.empty();
}

bool match(Cursor& compiled, Cursor& given, std::vector<size_t>& order) {
  if (given.here() != compiled.here()) return false;
  const char kind = compiled.here();
  ++compiled.at;
  ++given.at;
  if (kind == 't') order.push_back(given.tensors++);
  if (kind == '=') return compiled.text() == given.text();
  if (kind == '{') return matchMap(compiled, given, order);
  if (kind != '[') return true;
  while (compiled.here() != ']')
    if (given.here() == ']' || !match(compiled, given, order)) return false;
  if (given.here() != ']') return false;
  ++compiled.at;
  ++given.at;
  return true;
}

}  // namespace

bool isForm(std::string_view text) {
  struct Open {
    char closing;
    std::set<std::string_view> keys;
  };
  std::vector<Open> open;  // the innermost is last
  for (size_t at = 0; at < text.size();) {
    if (!open.empty() && text[at] == open.back().closing) {
      open.pop_back();
      ++at;
      continue;
    }
    if (!open.empty() && open.back().closing == '}') {
      const std::optional<std::string_view> key = stepOverText(text, at);
      if (!key || !open.back().keys.insert(*key).second) return false;
    }
    if (at == text.size()) return false;
    const char kind = text[at++];
    if (kind == '=' && !stepOverText(text, at)) return false;
    if (kind == '[') open.push_back({']', {}});
    if (kind == '{') open.push_back({'}', {}});
    if (open.size() > kMostNested || std::string_view("t-=[{").find(kind) == std::string_view::npos) return false;
  }
  return open.empty();
}

std::vector<FormValue> formValues(std::string_view form) {
  std::vector<FormValue> values;
  for (Cursor all{form}; !all.atEnd();) values.push_back(valueOf(all));
  return values;
}

std::vector<std::string> tensorNames(std::string_view form) {
  std::vector<std::string> names;
  Cursor first{form};
  if (!first.atEnd()) first.skip();
  Cursor all{form};
  if (first.atEnd() && (all.here() == '[' || all.here() == '{')) {
    nameTensors(all, "", names);
    return names;
  }
  for (size_t i = 0; !all.atEnd(); ++i) nameTensors(all, std::to_string(i), names);
  return names;
}

std::string withoutTrailingNothing(std::string form) {
  while (form.ends_with('-')) form.pop_back();
  return form;
}

std::optional<std::vector<size_t>> tensorOrder(std::string_view compiled, std::string_view given) {
  std::vector<size_t> order;
  Cursor ours{compiled}, theirs{given};
  while (!ours.atEnd())
    if (!match(ours, theirs, order)) return std::nullopt;
  return theirs.atEnd() ? std::optional(order) : std::nullopt;
}

std::string formInWords(std::string_view form) {
  std::string words;
  std::string closing;  // closing brackets of the open values, the innermost last
  bool is_first = true;
  const auto text = [&](size_t& at) {
    const size_t colon = form.find(':', at);
    const size_t length = std::stoul(std::string(form.substr(at, colon - at)));
    at = colon + 1 + length;
    return form.substr(colon + 1, length);
  };
  for (size_t at = 0; at < form.size();) {
    const char c = form[at];
    if (c == ']' || c == '}') {
      words += c;
      closing.pop_back();
      is_first = false;
      ++at;
      continue;
    }
    if (!is_first) words += ", ";
    is_first = false;
    if (closing.ends_with('}')) {
      words += cat(text(at), ": ");
      if (at >= form.size()) break;
    }
    const char kind = form[at++];
    if (kind == 't') words += "a tensor";
    if (kind == '-') words += "nothing";
    if (kind == '=') words += text(at);
    if (kind == '[' || kind == '{') {
      words += kind;
      closing += kind == '[' ? ']' : '}';
      is_first = true;
    }
  }
  return words.empty() ? "nothing" : words;
}

}  // namespace abele::calls
