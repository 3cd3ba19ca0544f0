// What a line of a configuration file says, before it is evaluated.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "options/value.h"

namespace abele::host {

/// Where text stops making sense.
struct SyntaxError {
  std::string detail;
};

struct Expression {
  enum class Kind {
    kConstant,
    kName,
    kAttribute,
    kCall,
    kList,
    kTuple,
    kSet,
    kMap,
    kUnary,
    kBinary,
    kCompare,        // two operands; a chain is several, joined by "and"
    kLogical,        // "and", "or"
    kConditional,    // condition, then, else
    kComprehension,  // text: "[", "(", "{", ":"; parts: the element, of a map its value, and clauses
    kClause,         // names: the variables; parts: what they run over, and conditions
    kSubscript,      // what, index
    kSlice,          // begin, end, step; None where one is left out
    kJoined,         // an f-string: texts and fields
    kField,          // value, format; text: the conversion
    kSpread,         // text: "*", "**"
  };
  Kind kind = Kind::kConstant;
  OptionValue constant;
  std::string text;                // the name or the operator
  std::vector<Expression> parts;   // operands, items, a map's names and values in turn; of a call: what, then arguments
  std::vector<std::string> names;  // of the last arguments of a call; empty: of a "**"
};

/// A value that is looked at, such as a call, or given to a target.
struct Statement {
  std::optional<Expression> target;
  Expression value;
};

/// The statements of a line: a part of Python's expressions. Throws SyntaxError.
std::vector<Statement> parseLine(const std::string& line);
/// One expression. Throws SyntaxError.
Expression parseExpression(const std::string& text);
/// A JSON object, in its order. Throws SyntaxError.
std::vector<std::pair<std::string, Expression>> parseJsonObject(const std::string& text);

}  // namespace abele::host
