#include "base/hidden_writes.h"

#include <unordered_map>

namespace abele {

const HiddenWrites* hiddenWrites(const std::string& op) {
  static const std::unordered_map<std::string, HiddenWrites> table = {
#define ABELE_HIDDEN_WRITES(name, training_arg, ...) {name, {training_arg, {__VA_ARGS__}}},
#include "base/hidden_writes.def"
#undef ABELE_HIDDEN_WRITES
  };
  const auto found = table.find(op);
  return found == table.end() ? nullptr : &found->second;
}

}  // namespace abele
