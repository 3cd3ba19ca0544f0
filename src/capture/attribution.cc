#include "capture/attribution.h"

#include <algorithm>
#include <set>

#include <ATen/SequenceNumber.h>

#include "base/cat.h"
#include "base/error.h"
#include "base/joined.h"
#include "capture/autograd_bridge.h"

namespace abele::capture {

Attribution::Attribution(ir::Graph* graph, std::function<std::string()> source_location, const ir::Graph* earlier)
    : graph_(graph), source_location_(std::move(source_location)), earlier_(earlier) {
  graph_->blocks.push_back({});
  current_.block = 0;
}

void Attribution::beginBlock(const std::string& user_id, const std::vector<int32_t>& devices) {
  if (backward_) return;
  note(current_);
  auto& blocks = graph_->blocks;
  auto found = std::find_if(blocks.begin() + 1, blocks.end(), [&](const ir::Block& b) { return b.user_id == user_id; });
  current_.block = static_cast<int32_t>(found - blocks.begin());
  if (found != blocks.end()) return;
  ir::Block& block = blocks.emplace_back(ir::Block{user_id, devices.empty() ? ir::kNone : devices[0], source()});
  if (devices.size() < 2) return;
  block.group = devices;
  const bool differ = std::set<int32_t>(devices.begin(), devices.end()).size() == devices.size();
  ABELE_REQUIRE(differ && *std::ranges::min_element(devices) >= 0, E0710,
                {.what = cat("block \"", user_id, "\" has the devices ", joined(devices)),
                 .at = block.source,
                 .expected = "different numbers from 0 on"});
}

void Attribution::endBlock() {
  if (backward_) return;
  note(current_);
  current_.block = ir::kNone;
}

Attribution::Scope Attribution::scopeNow() const {
  Scope scope = scopes_.empty() ? Scope() : scopes_.back();
  if (!modules_) return scope;
  const std::vector<std::string> modules = modules_();
  for (size_t i = scope.modules; i < modules.size(); ++i) scope.path += cat(scope.path.empty() ? "" : "/", modules[i]);
  scope.modules = modules.size();
  return scope;
}

void Attribution::pushScope(const std::string& name) {
  if (backward_) return;
  Scope scope = scopeNow();
  scope.path += cat(scope.path.empty() ? "" : "/", name);
  scopes_.push_back(std::move(scope));
}

void Attribution::popScope() {
  if (!scopes_.empty() && !backward_) scopes_.pop_back();
}

void Attribution::startBackward() {
  note(current_);
  backward_ = true;
}

void Attribution::note(const Where& where) {
  const uint64_t end = at::sequence_number::peek();
  if (marks_.empty() || marks_.back().end < end) marks_.push_back({end, where});
}

const ir::Node* Attribution::earlierNode(const std::string& op) const {
  const size_t place = graph_->nodes.size();
  const bool is_same = earlier_ != nullptr && place < earlier_->nodes.size() && earlier_->nodes[place].op == op;
  return is_same ? &earlier_->nodes[place] : nullptr;
}

Where Attribution::here(const std::string& op, const ir::Node* producer, const std::string& module) {
  if (!backward_) {
    const ir::Node* const earlier = earlierNode(op);
    current_.source = earlier ? earlier->source : source();
    current_.scope = earlier ? earlier->scope : scopeNow().path;
    current_.forward = graph_->nextNodeId();
    Where where = current_;
    if (!earlier && !module.empty()) where.scope += cat(where.scope.empty() ? "" : "/", module);
    note(where);
    return where;
  }
  const int64_t sequence = currentFunctionSequence();
  Where where;
  auto mark = std::upper_bound(marks_.begin(), marks_.end(), sequence,
                               [](int64_t s, const Mark& m) { return s < static_cast<int64_t>(m.end); });
  if (sequence >= 0 && mark != marks_.end())
    where = mark->where;
  else if (const ir::Node* near = producer != nullptr || graph_->nodes.empty() ? producer : &graph_->nodes.back())
    where = {.block = near->block, .forward = near->forward, .scope = near->scope, .source = near->source};
  where.direction = ir::Direction::kBackward;
  return where;
}

}  // namespace abele::capture
