// Code that the printer (text.cc) and the parser (parse.cc) share.
#pragma once

#include <array>
#include <string_view>

#include "ir/graph.h"

namespace abele::ir {

inline constexpr std::array<std::string_view, 6> kInputKindNames = {"argument", "parameter",   "buffer",
                                                                    "constant", "accumulator", "state"};
inline constexpr std::array<std::string_view, 4> kOutputKindNames = {"result", "loss", "gradient", "update"};
inline constexpr std::array<std::string_view, 4> kDirectionNames = {"fwd", "bwd", "wgrad", "update"};

inline std::string_view inputKindName(InputKind kind) { return kInputKindNames[static_cast<size_t>(kind)]; }
inline std::string_view outputKindName(OutputKind kind) { return kOutputKindNames[static_cast<size_t>(kind)]; }
inline std::string_view directionName(Direction d) { return kDirectionNames[static_cast<size_t>(d)]; }

/// Default of Node::is_view in the text.
inline bool makesOnlyViews(const Graph& graph, const Node& node) {
  bool any = false, all = node.writes.empty();
  forEachResult(node, [&](ValueId v) {
    any = true;
    all = all && graph.values[v].base != v;
  });
  return any && all;
}

}  // namespace abele::ir
