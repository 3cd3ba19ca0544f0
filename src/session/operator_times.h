// Where the last call's time went, by operator and by layer: an estimate, as devices time segments as a whole.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace abele::host {

class Session;

/// The share of one operator, or of one layer.
struct TimeShare {
  std::string name;            // "aten::addmm"; "encoder/layer.3", empty: of no module
  int64_t count = 0;           // operators of a micro-batch and of an update
  std::array<double, 4> us{};  // of the last call, by ir::Direction
  double sum() const { return us[0] + us[1] + us[2] + us[3]; }
};
struct OperatorTimes {
  std::vector<TimeShare> operators, layers;  // the longest first
};

/// Capture timed every operator once, on one device. These times are scaled so that those of a stage and direction sum
/// to what its segments took in the last call; operators that capture never ran are estimated by their shapes.
/// Returns: nothing before the first call. Throws E0705 as Session::graph().
OperatorTimes operatorTimes(Session& session);

}  // namespace abele::host
