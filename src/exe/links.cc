#include "exe/links.h"

#include <map>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/instructions.h"

namespace abele::exe {

std::vector<LinkUse> linksOf(const Executable& executable) {
  std::map<int64_t, LinkUse> by_number;
  for (size_t w = 0; w < executable.workers.size(); ++w)
    for (const Action& action : executable.workers[w].actions)
      for (const Instruction& i : executable.segments[action.segment].instructions) {
        if (!hasTrait(i.op, kMessage)) continue;
        LinkUse& link = by_number[i.args.at(2).i];
        link.link = i.args.at(2).i;
        const bool sends = ownOp(i.op) == OwnOp::kSend;
        (sends ? link.from : link.to) = executable.workers[w].process;
        (sends ? link.from_worker : link.to_worker) = static_cast<int32_t>(w);
      }
  std::vector<LinkUse> links;
  for (const auto& [number, link] : by_number) links.push_back(link);
  return links;
}

int64_t linkOffset(const Executable& executable) {
  const auto spaceOf = [&](int32_t worker) -> int64_t { return worker < 0 ? -1 : executable.workers[worker].space; };
  std::vector<int64_t> ends;
  for (const LinkUse& link : linksOf(executable))
    ends.insert(ends.end(), {link.link, link.from, link.to, spaceOf(link.from_worker), spaceOf(link.to_worker)});
  // The shift leaves room to add the numbers of links.
  return static_cast<int64_t>(XXH3_64bits(ends.data(), ends.size() * sizeof(int64_t)) >> 2);
}

}  // namespace abele::exe
