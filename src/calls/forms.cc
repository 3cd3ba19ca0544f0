#include "calls/forms.h"

#include <algorithm>
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
  std::string_view text() { return *stepOverText(form, at); }
  FormValue value() {
    FormValue value{.kind = form[at++]};
    if (value.kind == 't') value.tensor = tensors++;
    if (value.kind == '=') value.text = text();
    if (value.kind != '[' && value.kind != '{') return value;
    const bool has_keys = value.kind == '{';
    while (form[at] != (has_keys ? '}' : ']')) {
      std::string key(has_keys ? text() : "");
      value.items.push_back({std::move(key), this->value()});
    }
    ++at;
    return value;
  }
};

/// Adds the names of the tensors in a value.
void nameTensors(const FormValue& value, const std::string& name, std::vector<std::string>& names) {
  if (value.kind == 't') names.push_back(name);
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string key = value.kind == '{' ? value.items[i].key : std::to_string(i);
    nameTensors(value.items[i].value, name.empty() ? key : cat(name, ".", key), names);
  }
}

/// Adds the index of each of the given tensors. Returns false if the values differ in more than the order of keys.
bool match(const FormValue& compiled, const FormValue& given, std::vector<size_t>& order) {
  if (compiled.kind != given.kind || compiled.text != given.text || compiled.items.size() != given.items.size())
    return false;
  if (given.kind == 't') order.push_back(given.tensor);
  std::map<std::string_view, const FormValue*> by_key;
  if (given.kind == '{')
    for (const FormItem& item : given.items) by_key.emplace(item.key, &item.value);
  for (size_t i = 0; i < compiled.items.size(); ++i) {
    const FormValue* other = &given.items[i].value;
    if (given.kind == '{') {
      const auto found = by_key.find(compiled.items[i].key);
      if (found == by_key.end()) return false;
      other = found->second;
    }
    if (!match(compiled.items[i].value, *other, order)) return false;
  }
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
  for (Cursor all{form}; !all.atEnd();) values.push_back(all.value());
  return values;
}

std::vector<std::string> tensorNames(std::string_view form) {
  std::vector<std::string> names;
  const std::vector<FormValue> values = formValues(form);
  const bool is_structure = values.size() == 1 && (values[0].kind == '[' || values[0].kind == '{');
  for (size_t i = 0; i < values.size(); ++i) nameTensors(values[i], is_structure ? "" : std::to_string(i), names);
  return names;
}

std::string withoutTrailingNothing(std::string form) {
  while (form.ends_with('-')) form.pop_back();
  return form;
}

std::optional<std::vector<size_t>> tensorOrder(std::string_view compiled, std::string_view given) {
  std::vector<size_t> order;
  const std::vector<FormValue> ours = formValues(compiled), theirs = formValues(given);
  const auto fit = [&](const FormValue& own, const FormValue& their) { return match(own, their, order); };
  return std::ranges::equal(ours, theirs, fit) ? std::optional(order) : std::nullopt;
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
