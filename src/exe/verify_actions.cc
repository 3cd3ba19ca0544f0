#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/cat.h"
#include "base/instructions.h"
#include "exe/instruction_slots.h"
#include "exe/progress.h"
#include "exe/verify_parts.h"

namespace abele::exe {
namespace {

class ActionVerifier : Finder {
 public:
  ActionVerifier(const Executable& exe, std::vector<std::string>& findings)
      : Finder(findings), exe_(exe), worker_of_(exe.segments.size(), -1), runs_of_(exe.segments.size(), 0) {}

  void run() {
    checkTasks();
    checkMemory();
    if (findings_.empty()) checkProgress();
  }

 private:
  bool isUpdate(const Segment& segment) const { return segment.direction == Direction::kUpdate; }
  static bool isTransferOnly(const Segment& segment) {
    return std::ranges::all_of(segment.instructions, [](const Instruction& i) {
      return ownOp(i.op) == OwnOp::kTransfer || hasTrait(i.op, kMessage);
    });
  }

  static bool isSumOnly(const Segment& segment) {
    return std::ranges::all_of(segment.instructions, [](const Instruction& i) {
      return ownOp(i.op) == OwnOp::kAdd || hasTrait(i.op, kJoint);
    });
  }

  // A segment runs once for each micro-batch, and an update once for each group. Workers that share a segment are in
  // one process.
  void checkTasks() {
    std::set<std::pair<int32_t, int32_t>> tasks;
    for (size_t w = 0; w < exe_.workers.size(); ++w)
      for (const Action& a : exe_.workers[w].actions) {
        const Segment& segment = exe_.segments[a.segment];
        const auto worker = static_cast<int32_t>(w);
        int32_t& owner = worker_of_[a.segment];
        require(owner < 0 || exe_.workers[owner].process == exe_.workers[w].process, segment.name,
                " is run by workers ", owner, " and ", w);
        owner = worker;
        for (const Wait& wait : a.waits) waits_.push_back({a.segment, wait.segment});
        ++runs_of_[a.segment];
        require(!exe_.workers[w].isLink() || (addsUp(exe_.workers[w]) ? isSumOnly(segment) : isTransferOnly(segment)),
                segment.name, " computes on a link");
        require(segment.replica == exe_.workers[w].replica, segment.name, " is run for replica ",
                exe_.workers[w].replica);
        require(tasks.insert({a.segment, a.micro_batch}).second, segment.name, " runs twice for micro-batch ",
                a.micro_batch);
        require(!isUpdate(segment) || (a.micro_batch + 1) % exe_.accumulation == 0, segment.name,
                " updates in the middle of a group, after micro-batch ", a.micro_batch);
      }
    for (size_t s = 0; s < exe_.segments.size(); ++s) {
      const Segment& segment = exe_.segments[s];
      const int64_t expected = isUpdate(segment) ? exe_.device_iterations : exe_.micro_batches;
      require(runs_of_[s] == expected, segment.name, " runs ", runs_of_[s], " times instead of ", expected);
    }
    require(!exe_.segments.empty() || exe_.micro_batches == 1, "micro-batches without work");
    checkMessages();
    checkLinks();
  }

  // A process learns of another one's work by messages alone, so only a receive may wait for another process.
  void checkMessages() {
    const auto process = [&](int32_t segment) {
      return worker_of_[segment] < 0 ? -1 : exe_.workers[worker_of_[segment]].process;
    };
    for (const auto& [segment, other] : waits_) {
      if (process(segment) == process(other)) continue;
      const std::vector<Instruction>& instructions = exe_.segments[segment].instructions;
      require(!instructions.empty() && ownOp(instructions[0].op) == OwnOp::kReceive, exe_.segments[segment].name,
              " waits for ", exe_.segments[other].name, " of another process");
    }
  }

  // The messages that go through one end of a link.
  struct LinkEnd {
    int32_t worker = -1;
    struct Message {
      const Instruction* instruction;
      int32_t micro_batch;
    };
    std::vector<Message> messages = {};
  };

  // A link has no labels on its messages, so both ends must expect the same messages in the same order.
  void checkLinks() {
    std::map<int64_t, std::pair<LinkEnd, LinkEnd>> links;  // sender and receiver, by number
    for (size_t w = 0; w < exe_.workers.size(); ++w)
      for (const Action& a : exe_.workers[w].actions)
        for (const Instruction& i : exe_.segments[a.segment].instructions) {
          if (!hasTrait(i.op, kMessage)) continue;
          auto& [sender, receiver] = links[i.args[2].i];
          LinkEnd& end = ownOp(i.op) == OwnOp::kSend ? sender : receiver;
          require(end.worker < 0 || end.worker == static_cast<int32_t>(w), "link ", i.args[2].i, " is used by workers ",
                  end.worker, " and ", w);
          end.worker = static_cast<int32_t>(w);
          end.messages.push_back({&i, a.micro_batch});
        }
    for (const auto& [number, ends] : links) checkLink(number, ends.first, ends.second);
  }

  // A dense value is sent in the order of its memory. Values with gaps are packed in logical order.
  static bool goesInOrder(const Type& type) { return type.isContiguous() || type.extent() != type.numel(); }

  void checkLink(int64_t number, const LinkEnd& sender, const LinkEnd& receiver) {
    if (!require(sender.messages.size() == receiver.messages.size(), "link ", number, ": ", sender.messages.size(),
                 " messages are sent, ", receiver.messages.size(), " received"))
      return;
    for (size_t m = 0; m < sender.messages.size(); ++m) {
      const auto &sent = sender.messages[m], &received = receiver.messages[m];
      const bool names_each_other = sent.instruction->args[1].i == exe_.workers[receiver.worker].process &&
                                    received.instruction->args[1].i == exe_.workers[sender.worker].process;
      const bool is_alike = std::ranges::equal(
          sent.instruction->args[0].ints, received.instruction->args[0].ints, [&](int64_t from, int64_t to) {
            const Type &own = exe_.slots[from].type, &other = exe_.slots[to].type;
            const bool goes_as_it_lies = sent.instruction->args[0].ints.size() == 1;
            return own.dtype == other.dtype && own.sizes == other.sizes &&
                   (!goes_as_it_lies || own.strides == other.strides || (goesInOrder(own) && goesInOrder(other)));
          });
      if (!require(names_each_other && is_alike && sent.micro_batch == received.micro_batch, "link ", number,
                   ": message ", m, " is not sent as it is received"))
        return;
    }
  }

  // A worker overwrites its transient memory between any two tasks.
  void checkMemory() {
    std::vector<std::set<int32_t>> transient_of(exe_.segments.size());  // by segment: groups
    for (size_t s = 0; s < exe_.segments.size(); ++s) {
      const auto note = [&](int32_t slot) {
        const int32_t group = exe_.slots[slot].group;
        if (exe_.groups[group].kind == GroupKind::kTransient) transient_of[s].insert(group);
      };
      for (const Instruction& i : exe_.segments[s].instructions) {
        forEachOperand(i, note);
        forEachResult(i, note);
      }
    }
    std::map<std::pair<int32_t, int64_t>, size_t> owners;  // by group and frame
    for (size_t w = 0; w < exe_.workers.size(); ++w)
      for (const Action& a : exe_.workers[w].actions)
        for (const int32_t group : transient_of[a.segment]) {
          const size_t owner = owners.emplace(std::pair(group, exe_.frameOf(group, a.micro_batch)), w).first->second;
          const Group& g = exe_.groups[group];
          require(owner == w && (g.frames > 1 || g.worker == static_cast<int32_t>(w)), exe_.segments[a.segment].name,
                  " uses transient memory of worker ", owner == w ? g.worker : static_cast<int32_t>(owner));
        }
  }

  void checkProgress() {
    std::vector<int32_t> last(exe_.segments.size(), -1);
    const std::vector<size_t> ran = runOnCounters(exe_, [&](size_t, const Action& a) {
      require(last[a.segment] < a.micro_batch, exe_.segments[a.segment].name, " runs for micro-batch ", a.micro_batch,
              " after micro-batch ", last[a.segment]);
      last[a.segment] = a.micro_batch;
    });
    for (size_t w = 0; w < ran.size(); ++w) {
      if (ran[w] == exe_.workers[w].actions.size()) continue;
      const Action& a = exe_.workers[w].actions[ran[w]];
      require(false, "worker ", w, " waits forever before ", exe_.segments[a.segment].name, " of micro-batch ",
              a.micro_batch);
    }
  }

  const Executable& exe_;
  std::vector<int32_t> worker_of_;  // by segment
  std::vector<int64_t> runs_of_;
  std::vector<std::pair<int32_t, int32_t>> waits_;  // a segment, and a segment that it waits for
};

}  // namespace

void checkActions(const Executable& executable, std::vector<std::string>& findings) {
  ActionVerifier(executable, findings).run();
}

}  // namespace abele::exe
