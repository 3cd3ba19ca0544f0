// Random graphs of form captured, for property tests. Same seed, same graph. Operators are made up ("test::..."): the
// graphs have structure but no meaning.
#pragma once

#include <random>
#include <vector>

#include "base/cat.h"
#include "ir/graph.h"

namespace abele::test {

class RandomGraph {
 public:
  explicit RandomGraph(uint32_t seed) : random_(seed) {}

  ir::Graph make() {
    g_.training = true;
    int num_blocks = below(5);
    g_.blocks.push_back({});
    for (int i = 1; i <= num_blocks; ++i) g_.blocks.push_back({cat("block", i), i - below(2), cat("m.py:", i)});
    for (int i = 1; i <= num_blocks; ++i) g_.blocks[i].ipu_id = std::max(g_.blocks[i].ipu_id, g_.blocks[i - 1].ipu_id);
    addExternals();
    for (block_ = 0; block_ <= num_blocks; ++block_)
      for (int n = below(6); n > 0; --n) addForward();
    block_ = num_blocks;
    ir::ValueId loss = addCompute(ir::Direction::kForward, {});
    g_.outputs.push_back({loss, ir::OutputKind::kLoss, ir::kNone});
    for (int i = below(3); i > 0; --i) g_.outputs.push_back({pick(values_), ir::OutputKind::kResult, i});
    addBackward(num_blocks);
    return std::move(g_);
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  const T& pick(const std::vector<T>& list) {
    return list[below(static_cast<int>(list.size()))];
  }

  static Type matrix() { return contiguousType(DType::kFloat32, {4, 8}); }

  void addExternals() {
    values_.push_back(g_.addInput(matrix(), ir::InputKind::kArgument, 0, "x"));
    auto add = [&](ir::InputKind kind, const char* name, bool trainable) {
      int32_t index = static_cast<int32_t>(g_.externals.size());
      g_.externals.push_back({cat(name, index), kind, matrix(), ir::kNone, 0, trainable});
      values_.push_back(g_.addInput(matrix(), kind, index, cat(name, index)));
      return values_.back();
    };
    for (int i = 1 + below(3); i > 0; --i) add(ir::InputKind::kParameter, "w", true);
    for (int i = below(2); i > 0; --i) buffers_.push_back(add(ir::InputKind::kBuffer, "b", false));
    for (int i = below(3); i > 0; --i) constants_.push_back(add(ir::InputKind::kConstant, "c", false));
  }

  void addForward() {
    int kind = below(10);
    if (kind < 2)
      values_.push_back(addView(pick(values_), ir::Direction::kForward));
    else if (kind < 4)
      addWrite();
    else if (kind < 5 && !constants_.empty())
      addConstant();
    else
      values_.push_back(addCompute(ir::Direction::kForward, {}));
  }

  ir::Node& addNode(const char* op, ir::Direction direction) {
    ir::Node& node = g_.addNode(op);
    node.direction = direction;
    node.block = block_;
    if (chance(30)) node.source = cat("m.py:", below(99));
    return node;
  }

  ir::ValueId addCompute(ir::Direction direction, const std::vector<ir::ValueId>& gradients) {
    ir::Node& node = addNode("test::compute.Out", direction);
    for (ir::ValueId v : gradients) node.args.push_back(Arg::id(v));
    node.args.push_back(Arg::id(pick(values_)));
    if (chance(30)) node.args.push_back(Arg::idList({pick(values_), pick(values_)}));
    if (chance(30)) node.args.push_back(Arg::real(below(1000) / 7.0));
    if (chance(20)) {
      node.random_offset = g_.random_draws;
      g_.random_draws += node.random_draws = 4 * (1 + below(3));
      if (node.id % 2 == 0) addNormals(node);
    }
    ir::ValueId first = g_.addValue(matrix(), node.id);
    node.results = {{first}};
    if (chance(20)) node.results.push_back({g_.addValue(contiguousType(DType::kInt64, {}), node.id), ir::kNone});
    return first;
  }

  void addNormals(ir::Node& node) {
    node.normals = {.count = 1 + node.id % 3, .before = g_.normals.count, .spare = g_.normals.spare};
    g_.normals.count += node.normals.count;
    g_.normals.spare = g_.random_draws;
  }

  // Views are rows, columns or all of the base, so that some are the same and some are the base.
  ir::ValueId addView(ir::ValueId of, ir::Direction direction) {
    ir::Node& node = addNode("test::view", direction);
    node.is_view = true;
    node.args = {Arg::id(of)};
    Type types[] = {
        matrix(), {DType::kFloat32, {8}, {1}}, {DType::kFloat32, {4}, {8}}, {DType::kFloat32, {8, 4}, {1, 8}}};
    int which = below(4);
    ir::ValueId view = g_.addView(types[which], node.id, g_.baseOf(of),
                                  which == 1   ? 8 * below(4)
                                  : which == 2 ? below(8)
                                               : 0);
    node.results = {{view}};
    return view;
  }

  void addConstant() {
    ir::Node& node = addNode("test::constant", ir::Direction::kForward);
    node.args = {Arg::id(pick(constants_))};
    if (chance(50)) node.block = ir::kNone;
    node.results = {{g_.addValue(matrix(), node.id)}};
    values_.push_back(node.results[0][0]);
  }

  // Writes a buffer in block 0 (so that one stage writes it) or anything that forward made.
  void addWrite() {
    bool buffer = block_ == 0 && !buffers_.empty() && chance(50);
    ir::ValueId before = buffer ? buffers_[0] : g_.baseOf(pick(values_));
    bool external = false;
    for (const ir::Input& input : g_.inputs) external = external || input.value == before;
    for (const ir::Output& output : g_.outputs) external = external || output.value == before;
    if (external && !buffer) return;
    ir::Node& node = addNode("test::write_", ir::Direction::kForward);
    node.args = {Arg::id(pick(values_)), Arg::id(before)};
    ir::Write write{.arg = 1, .view = matrix(), .before = before};
    if (chance(50)) write.view = {DType::kFloat32, {4}, {8}}, write.offset = below(8);
    write.after = g_.addValue(matrix(), node.id);
    node.writes = {write};
    node.results = {{ir::kNone}};
    values_.push_back(write.after);
    if (!buffer) return;
    std::erase_if(g_.outputs, [](const ir::Output& o) { return o.kind == ir::OutputKind::kUpdate; });
    for (const ir::Input& input : g_.inputs)
      if (input.kind == ir::InputKind::kBuffer)
        g_.outputs.push_back({write.after, ir::OutputKind::kUpdate, input.external});
    buffers_[0] = write.after;
  }

  void addBackward(int num_blocks) {
    std::vector<ir::ValueId> gradients = {addGradient({}, ir::kNone)}, whole = gradients;
    for (int n = below(16); n > 0; --n) {
      int32_t block = chance(25) ? ir::kNone : below(num_blocks + 1);
      std::vector<ir::ValueId> read = {pick(gradients)};
      if (chance(40)) read.push_back(pick(gradients));
      block_ = block;
      const bool is_view = chance(15);
      gradients.push_back(is_view ? addView(read[0], ir::Direction::kBackward) : addGradient(read, block));
      if (!is_view) whole.push_back(gradients.back());
    }
    for (const ir::Input& input : g_.inputs)
      if (input.kind == ir::InputKind::kParameter && chance(80))
        g_.outputs.push_back({pick(whole), ir::OutputKind::kGradient, input.external});
  }

  ir::ValueId addGradient(const std::vector<ir::ValueId>& read, int32_t block) {
    block_ = block;
    return addCompute(ir::Direction::kBackward, read);
  }

  std::mt19937 random_;
  ir::Graph g_;
  int32_t block_ = 0;
  std::vector<ir::ValueId> values_, constants_, buffers_;
};

}  // namespace abele::test
