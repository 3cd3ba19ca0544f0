// Private to plan/: the stages that pass shard has divided among the devices of a group.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace abele::plan {

/// The parts of a divided stage. They come step by step, and in a step by the place of their device in the group.
struct DividedStages {
  DividedStages(const ir::Graph& graph, const std::vector<int>& worker_of) {
    std::map<std::pair<int32_t, int>, int> first;  // by stage of the pipeline and worker
    int last_place = 0;
    for (int s = 0; s < static_cast<int>(graph.stages.size()); ++s) {
      const ir::Stage& stage = graph.stages[s];
      pipeline_of_.push_back(stage.pipeline);
      owner_of.push_back(
          stage.pipeline == ir::kNone ? s : first.try_emplace({stage.pipeline, worker_of[s]}, s).first->second);
      const int place = static_cast<int>(std::ranges::find(stage.group, stage.device) - stage.group.begin());
      const bool continues = s > 0 && areParts(s - 1, s);
      step_of.push_back(continues ? step_of.back() + (place <= last_place) : 0);
      last_place = place;
    }
  }

  /// Returns true for parts of one stage of the pipeline.
  bool areParts(int a, int b) const {
    return a == b || (pipeline_of_[a] != ir::kNone && pipeline_of_[a] == pipeline_of_[b]);
  }

  std::vector<int> owner_of;  // by stage: the first part of the same stage on the same device, whose frame all use
  std::vector<int> step_of;   // by stage: 0 if the stage is not divided

 private:
  std::vector<int32_t> pipeline_of_;  // by stage
};

}  // namespace abele::plan
