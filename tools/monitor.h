// Shared by abele-monitor and gc-monitor: tables, times, and repeated output.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "base/cat.h"

namespace abele::tools {

using Row = std::vector<std::string>;

/// "3s", "1m3s", "2h0m5s", "1d2h0m5s".
inline std::string timeText(int64_t ns) {
  const int64_t all = ns / 1'000'000'000, days = all / 86400, hours = all / 3600 % 24, minutes = all / 60 % 60;
  return cat(days ? cat(days, "d") : "", days || hours ? cat(hours, "h") : "", all >= 60 ? cat(minutes, "m") : "",
             all % 60, "s");
}

inline std::vector<size_t> widthsOf(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  return widths;
}

/// Prints show()'s text once, or every `seconds` until the program is stopped. A terminal shows only the newest text.
template <class Show>
void showAgain(bool again, double seconds, const Show& show) {
  const bool clears = again && ::isatty(STDOUT_FILENO) != 0;
  while (true) {
    const std::string text = show();
    std::cout << (clears ? "\x1b[H\x1b[2J" : "") << text << std::flush;
    if (!again || !std::cout) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

}  // namespace abele::tools
