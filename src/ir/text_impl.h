// Code that the printer (text.cc) and the parser (parse.cc) share.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace abele::ir {

inline constexpr std::array<std::string_view, 6> kInputKindNames = {"argument", "parameter",   "buffer",
                                                                    "constant", "accumulator", "state"};
inline constexpr std::array<std::string_view, 4> kOutputKindNames = {"result", "loss", "gradient", "update"};
inline constexpr std::array<std::string_view, 4> kDirectionNames = {"fwd", "bwd", "wgrad", "update"};

inline std::string_view inputKindName(InputKind kind) { return kInputKindNames[static_cast<size_t>(kind)]; }
inline std::string_view outputKindName(OutputKind kind) { return kOutputKindNames[static_cast<size_t>(kind)]; }
inline std::string_view directionName(Direction d) { return kDirectionNames[static_cast<size_t>(d)]; }

// Visits the attributes that a line has in braces, in order: field(key, value, default). A line omits attributes that
// have their default. A bool is written as its key alone.
template <class T, class Fn>
void normalsAttributes(T& normals, Fn&& field) {
  field("normals", normals.count, int64_t{0});
  field("normals_before", normals.before, int64_t{0});
  field("spare", normals.spare, int64_t{0});
}
template <class T, class Fn>
void graphAttributes(T& graph, Fn&& field) {
  field("training", graph.training, false);
  field("draws", graph.random_draws, int64_t{0});
  normalsAttributes(graph.normals, field);
}
template <class T, class Fn>
void blockAttributes(T& block, Fn&& field) {
  field("ipu", block.ipu_id, kNone);
  field("group", block.group, std::vector<int32_t>());
  field("src", block.source, "");
}
template <class T, class Fn>
void stageAttributes(T& stage, Fn&& field) {
  field("device", stage.device, kNone);
  field("space", stage.space, 0);
  field("of", stage.pipeline, kNone);
  field("group", stage.group, std::vector<int32_t>());
}
template <class T, class Fn>
void inputAttributes(T& input, Fn&& field) {
  field("dim", input.dim, kNone);
  field("begin", input.begin, int64_t{0});
}
template <class T, class Fn>
void externalAttributes(T& external, Fn&& field) {
  field("owner", external.owner, kNone);
  field("initial", external.initial, 0.0);
  field("trainable", external.trainable, false);
}
template <class T, class Fn>
void nodeAttributes(T& node, Fn&& field) {
  field("block", node.block, kNone);
  field("of", node.forward, kNone);
  field("stage", node.stage, kNone);
  field("phase", node.phase, kNone);
  field("dir", node.direction, Direction::kForward);
  field("draws", node.random_draws, int64_t{kNone});
  field("offset", node.random_offset, int64_t{kNone});
  normalsAttributes(node.normals, field);
  field("draws_vary", node.draws_vary, false);
  field("src", node.source, "");
  field("scope", node.scope, "");
}

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
