// Finds the block, scope, line and direction of every recorded operator. Used by position.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace abele::capture {

struct Where {
  int32_t block = ir::kNone;
  ir::Direction direction = ir::Direction::kForward;
  ir::NodeId forward = ir::kNone;  // for a backward operator: its forward node
  std::string scope;
  std::string source;
};

/// A forward operator belongs to the block and scope that are active on the thread. A backward operator belongs to the
/// forward operator whose autograd function is running. Torch numbers autograd functions in the order in which forward
/// makes them; this class notes the number reached at every forward operator and block change. Source:
/// docs/architecture.md, capture.
class Attribution {
 public:
  /// earlier: the graph of an earlier capture of the same call; may be null.
  Attribution(ir::Graph* graph, std::function<std::string()> source_location, const ir::Graph* earlier);

  void beginBlock(const std::string& user_id, const std::vector<int32_t>& devices);
  void endBlock();
  std::string currentBlock() const {
    return current_.block == ir::kNone ? std::string() : graph_->blocks[current_.block].user_id;
  }
  void pushScope(const std::string& name);
  void popScope();
  /// As setModules of annotate.h.
  void setModules(std::function<std::vector<std::string>()> modules) { modules_ = std::move(modules); }
  /// All later operators are backward. Blocks and scopes no longer change, although recomputed forward code enters them
  /// again.
  void startBackward();
  bool isBackward() const { return backward_; }

  /// The block, scope and line of the operator that runs next. op: its name. producer: the node that made its last
  /// operand, for operators that autograd runs between its functions (sums of gradients). module: in forward, a
  /// module's scope within the active scopes, if the operator reads tensors of this module; "" if it is not known.
  Where here(const std::string& op, const ir::Node* producer, const std::string& module = {});
  std::string source() const { return source_location_ ? source_location_() : std::string(); }

 private:
  struct Mark {
    uint64_t end = 0;  // autograd functions from the previous mark's end up to this number belong to this mark
    Where where;
  };
  struct Scope {
    std::string path;    // as Node::scope
    size_t modules = 0;  // number of modules in it
  };
  void note(const Where& where);
  Scope scopeNow() const;
  /// The operator at the same place of the earlier capture; null if it is another one.
  const ir::Node* earlierNode(const std::string& op) const;

  ir::Graph* graph_;
  std::function<std::string()> source_location_;
  const ir::Graph* earlier_;
  std::function<std::vector<std::string>()> modules_;
  std::vector<Scope> scopes_;  // opened by pushScope()
  Where current_;              // its line is the last operator's
  std::vector<Mark> marks_;    // ends ascend
  bool backward_ = false;
};

}  // namespace abele::capture
