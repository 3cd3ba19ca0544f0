// Session::explain: the reasons for the program's placement.
#include "split/explain.h"
#include "base/error.h"
#include "compile/placement.h"
#include "ir/rewrite.h"
#include "session/impl.h"

namespace abele::session {

std::string Session::explain() const {
  const ir::Graph& graph = this->graph();  // throws for programs that were not compiled here
  const Compiled& compiled = impl_->require("explain()");
  const compile::ProgramOptions& options = impl_->options;
  std::string text = split::explainStages(graph, compiled.plan, compile::machineOf(options));
  if (const int64_t turns = compiled.plan.turns(); turns > 1)
    text +=
        cat(turns, " devices take the micro-batches of each device above in turn, which the prediction leaves out\n");
  if (!compiled.schedule_reason.empty())
    text += cat("schedule ", compiled.schedule, ": ", compiled.schedule_reason, "\n");
  text += compiled.placement.text();
  if (compile::splitsByItself(options)) {
    const auto devices = static_cast<int>(compiled.plan.device_of.size());
    const compile::Pieces pieces =
        compile::piecesOf(compiled.captured, options, compiled.optimizer,
                          compiled.placement.trials.empty() ? compile::splitDevices(options) : devices);
    const split::SplitOptions split = compile::splitOptions(options, devices);
    return text +
           split::explainAlternatives(pieces.graph, pieces.chain, split, split::autoSplit(pieces.chain, split).front());
  }
  if (!options.training || options.strategy != compile::Strategy::kPipelined || !compiled.divided_on.empty())
    return text;
  const std::vector<compile::ScheduleChoice> choices = compile::compareSchedules(graph, options);
  int64_t step_ns = 0;
  for (const compile::ScheduleChoice& choice : choices)
    if (choice.schedule == compiled.plan.options.schedule) step_ns = choice.step_ns;
  for (const compile::ScheduleChoice& choice : choices)
    text += cat("  schedule ", schedule::scheduleName(choice.schedule), ": ", split::millisecondsText(choice.step_ns),
                " ms, ", split::differenceText(choice.step_ns, step_ns), "\n");
  return text;
}

std::string Session::pieces() const {
  const ir::Graph& graph = this->graph();
  const Compiled& compiled = impl_->require("pieces()");
  constexpr int kEveryBoundary = 1'000'000;
  const compile::Pieces pieces =
      compile::piecesOf(compiled.captured, impl_->options, compiled.optimizer, /*devices=*/1);
  const split::SplitChain chain = split::splitChain(pieces.graph, kEveryBoundary, /*measured=*/true);
  const std::vector<int32_t> position = ir::positionsById(graph);
  std::string out = "[";
  for (const split::Piece& piece : chain.pieces) {
    const ir::Node& first = pieces.graph.nodes.at(piece.first_position);
    const ir::Node& placed = graph.nodes[position[first.id]];
    out += cat(out.size() > 1 ? ",\n" : "\n", "{\"forward_ns\": ", piece.forward_ns,
               ", \"backward_ns\": ", piece.backward_ns, ", \"update_ns\": ", piece.update_ns,
               ", \"crossing_bytes\": ", piece.crossing_bytes, ", \"stage\": ", placed.stage, ", \"op\": \"", first.op,
               "\", \"scope\": \"", first.scope, "\"}");
  }
  return out + "\n]\n";
}

}  // namespace abele::session
