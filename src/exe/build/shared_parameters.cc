#include <algorithm>
#include <set>

#include "base/error.h"
#include "exe/build/replicate.h"
#include "ir/graph.h"

namespace abele::exe {

void checkSharedParameters(const ir::Graph& graph, const Replication& rules) {
  std::vector<int32_t> parameter_of(graph.values.size(), ir::kNone);  // by base value: the external that it holds
  for (const ir::Input& in : graph.inputs)
    if (in.kind == ir::InputKind::kParameter) parameter_of[in.value] = in.external;
  for (const ir::Node& node : graph.nodes)
    for (const ir::Write& w : node.writes) {
      const int32_t e = parameter_of[graph.baseOf(w.after)] = parameter_of[graph.baseOf(w.before)];
      if (e < 0 || node.direction == ir::Direction::kUpdate) continue;
      const std::string& name = graph.externals[e].name;
      const bool is_shared = std::none_of(rules.parameters.begin(), rules.parameters.end(), [&](const auto& groups) {
        return groups.parameter == name &&
               std::set(groups.first_of.begin(), groups.first_of.end()).size() == groups.first_of.size();
      });
      ABELE_REQUIRE(!is_shared, E0403,
                    {.what = cat("forward writes parameter ", name, ", which replicas share"),
                     .at = cat(node.op, node.source.empty() ? "" : cat(" (", node.source, ")")),
                     .found = cat(rules.replicas * rules.processes, " replicas"),
                     .expected = "replicas read the parameters that they share",
                     .remedy = "use one replica, or keep what forward writes in a buffer"});
    }
}

}  // namespace abele::exe
