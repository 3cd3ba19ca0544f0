#include "exe/build/shards.h"

#include <algorithm>
#include <map>

namespace abele::exe {
namespace {

class Dealer {
 public:
  Dealer(const Executable& exe, const std::vector<std::vector<int32_t>>& owner, const ShardingRules& rules)
      : exe_(exe), owner_(owner), rules_(rules), states_of_(exe.externals.size()) {
    shards_.holder = shards_.updater = owner;
    for (const int32_t e : externalsOf(exe, ExternalKind::kState))
      if (exe.externals[e].owner >= 0) states_of_[exe.externals[e].owner].push_back(e);
  }

  Shards run() {
    std::vector<Item> items;
    for (const int32_t e : externalsOf(exe_, ExternalKind::kParameter))
      for (int32_t first : firstsOf(e)) addItem(e, first, items);
    std::ranges::stable_sort(items, [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
    for (const Item& item : items) deal(item);
    return std::move(shards_);
  }

 private:
  // A parameter of a group of replicas, with its state.
  struct Item {
    int32_t parameter, first;  // the group's first replica
    bool weight, state;        // whether the weight, and the state, are dealt
    int32_t worker;            // worker of replica 0 that updates it; load is balanced by worker
    int64_t bytes;
  };

  std::vector<int32_t> firstsOf(int32_t e) const {
    std::vector<int32_t> firsts;
    for (size_t r = 0; r < owner_[e].size(); ++r)
      if (owner_[e][r] == static_cast<int32_t>(r)) firsts.push_back(static_cast<int32_t>(r));
    return firsts;
  }

  int64_t elementsOf(int32_t e) const { return typeOf(e).numel(); }
  int64_t bytesOf(int32_t e) const { return typeOf(e).extentBytes(); }
  int32_t workerOf(int32_t e) const { return exe_.groups[exe_.slots[exe_.externals[e].slot].group].worker; }
  const Type& typeOf(int32_t e) const { return exe_.slots[exe_.externals[e].slot].type; }

  void addItem(int32_t e, int32_t first, std::vector<Item>& items) {
    Item item{e, first, false, false, workerOf(e), 0};
    item.weight = rules_.weights && elementsOf(e) >= rules_.min_weight_elements;
    for (int32_t state : states_of_[e]) {
      item.state = item.state || (rules_.states && elementsOf(state) >= rules_.min_state_elements);
      item.worker = workerOf(state);
    }
    int64_t state_bytes = 0;
    for (int32_t state : states_of_[e]) state_bytes += bytesOf(state);
    item.bytes = (item.weight ? bytesOf(e) : 0) + (item.state ? state_bytes : 0);
    load_[{item.worker, first}] +=
        (rules_.weights && !item.weight ? bytesOf(e) : 0) + (rules_.states && !item.state ? state_bytes : 0);
    if (item.bytes > 0) items.push_back(item);
  }

  void deal(const Item& item) {
    int32_t best = item.first;
    for (size_t r = 0; r < owner_[item.parameter].size(); ++r)
      if (owner_[item.parameter][r] == item.first &&
          load_[{item.worker, static_cast<int32_t>(r)}] < load_[{item.worker, best}])
        best = static_cast<int32_t>(r);
    load_[{item.worker, best}] += item.bytes;
    for (size_t r = 0; r < owner_[item.parameter].size(); ++r) {
      if (owner_[item.parameter][r] != item.first) continue;
      shards_.updater[item.parameter][r] = best;
      if (item.weight) shards_.holder[item.parameter][r] = best;
      for (int32_t state : states_of_[item.parameter])
        if (item.state) shards_.holder[state][r] = best;
    }
  }

  const Executable& exe_;
  const std::vector<std::vector<int32_t>>& owner_;
  const ShardingRules& rules_;
  std::vector<std::vector<int32_t>> states_of_;          // by parameter
  std::map<std::pair<int32_t, int32_t>, int64_t> load_;  // bytes, by worker and replica
  Shards shards_;
};

}  // namespace

Shards chooseShards(const Executable& one_replica, const std::vector<std::vector<int32_t>>& owner,
                    const ShardingRules& rules) {
  return Dealer(one_replica, owner, rules).run();
}

}  // namespace abele::exe
