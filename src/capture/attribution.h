// Says of every recorded operator which block, scope, line and direction it belongs to. Used by position.h.
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
  ir::NodeId forward = ir::kNone;  // of a backward operator: the forward node that it belongs to
  std::string scope;
  std::string source;
};

/// Forward operators belong to what is active on the thread. Backward operators belong to the forward operator whose
/// autograd function is running: torch numbers the functions in the order in which forward makes them, and the number
/// reached at every forward operator and block change is noted here. Source: docs/architecture.md, capture.
class Attribution {
 public:
  Attribution(ir::Graph* graph, std::function<std::string()> source_location);

  void beginBlock(const std::string& user_id, const std::vector<int32_t>& devices);
  void endBlock();
  std::string currentBlock() const {
    return current_.block == ir::kNone ? std::string() : graph_->blocks[current_.block].user_id;
  }
  void pushScope(const std::string& name);
  void popScope();
  /// As setModules of annotate.h.
  void setModules(std::function<std::vector<std::string>()> modules) { modules_ = std::move(modules); }
  /// From here on everything is backward; blocks and scopes no longer change (recomputed forward code enters them
  /// again).
  void startBackward();
  bool isBackward() const { return backward_; }

  /// Where the operator that is about to run belongs. producer: the node that made its last operand, for operators that
  /// autograd runs between its functions (sums of gradients). module: in forward, the scope of the module that the
  /// operator reads, inside of the scopes around it; "" where nothing tells.
  Where here(const ir::Node* producer, const std::string& module = {});
  std::string source() const { return source_location_ ? source_location_() : std::string(); }

 private:
  struct Mark {
    uint64_t end = 0;  // functions numbered below this, and not below the mark before, belong here
    Where where;
  };
  struct Scope {
    std::string path;    // as operators carry it
    size_t modules = 0;  // how many modules are in it
  };
  void note(const Where& where);
  Scope scopeNow() const;

  ir::Graph* graph_;
  std::function<std::string()> source_location_;
  std::function<std::vector<std::string>()> modules_;
  std::vector<Scope> scopes_;  // that pushScope() has opened
  Where current_;              // with the source of the last operator
  std::vector<Mark> marks_;    // ends ascend
  bool backward_ = false;
};

}  // namespace abele::capture
