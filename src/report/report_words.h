// The sentences of a report: where the time goes, and which changes are predicted to help.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "report/trace_tracks.h"
#include "session/session.h"

namespace abele::report {

/// Formats like printf.
template <class... Values>
std::string printed(const char* format, Values... values) {
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format, values...)), '\0');
  std::snprintf(text.data(), text.size() + 1, format, values...);
  return text;
}

/// digits: number of significant digits.
std::string bytesText(double bytes, int digits);

/// Sentences about the last step. trace: its trace; memory: from plan::memoryJson. Each argument may be null.
std::vector<std::string> factsOf(const TraceTracks* trace, const session::SessionReport* report,
                                 const nlohmann::ordered_json& memory);

/// A change that the simulator predicts to be faster.
struct Advice {
  std::string what, how;  // how: the setter to call
  double us = 0;          // predicted gain of a step
  double gain = 0;        // share of a micro-batch's time
};
/// The best change first; empty if no costs are known. front_ns: time of recent calls outside of the session.
std::vector<Advice> adviceOf(const session::Session& session, int64_t front_ns);

}  // namespace abele::report
