// Checks that every worker stays in the memory of its own space. Only transfers read another space, and write their
// own.
#pragma once

#include <string>
#include <vector>

#include "base/cat.h"
#include "base/instructions.h"
#include "exe/executable.h"

namespace abele::test {

inline std::vector<std::string> findForeignMemory(const exe::Executable& exe) {
  std::vector<std::string> findings;
  for (size_t w = 0; w < exe.workers.size(); ++w)
    for (const exe::Action& action : exe.workers[w].actions) {
      const exe::Segment& segment = exe.segments[action.segment];
      for (const exe::Instruction& i : segment.instructions) {
        const bool is_transfer = ownOp(i.op) == OwnOp::kTransfer;
        const auto check = [&](int64_t slot, bool is_source) {
          if (slot < 0) return;
          const int32_t owner = exe.groups[exe.slots[slot].group].worker;
          if (owner < 0) return;  // the caller's
          const int32_t space = exe.workers[owner].space;
          if (is_source ? space == exe.workers[w].space : space != exe.workers[w].space)
            findings.push_back(cat("worker ", w, " of space ", exe.workers[w].space, " in ", segment.name, ": ", i.op,
                                   " uses $", slot, " of space ", space));
        };
        for (size_t a = 0; a < i.args.size(); ++a) {
          const Arg& arg = i.args[a];
          if (arg.kind == Arg::Kind::kId) check(arg.i, is_transfer && a == 1);
          if (arg.kind == Arg::Kind::kIdList || arg.kind == Arg::Kind::kOptionalIdList)
            for (int64_t slot : arg.ints) check(slot, false);
        }
        for (const auto& group : i.results)
          for (int32_t slot : group) check(slot, false);
      }
    }
  return findings;
}

}  // namespace abele::test
