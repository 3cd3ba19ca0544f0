// The time of the last call by operator and by layer. It is an estimate, because devices time only whole segments.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace abele::session {
class Session;
}  // namespace abele::session

namespace abele::report {

/// The share of one operator, or of one layer.
struct TimeShare {
  std::string name;            // "aten::addmm"; "encoder/layer.3"; empty: outside of all modules
  int64_t count = 0;           // number of operators in a micro-batch and in an update
  std::array<double, 4> us{};  // time in the last call, by ir::Direction
  double sum() const { return us[0] + us[1] + us[2] + us[3]; }
};
struct OperatorTimes {
  std::vector<TimeShare> operators, layers;  // the longest first
};

/// Capture timed every operator once, on one device. These times are scaled so that their sum over a stage and
/// direction equals the measured time of its segments in the last call. Times of operators that capture never ran are
/// estimated from their shapes. Empty before the first call. Throws E0705 like Session::graph().
OperatorTimes operatorTimes(session::Session& session);

}  // namespace abele::report
