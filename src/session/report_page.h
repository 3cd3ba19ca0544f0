// A report as one page: what a step did, what its memory is for, and what would make it faster. It is report_page.html
// with the figures in it as JSON, and needs no network.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace abele::host {

class Session;

/// What the page says of a model beside what its session knows.
struct PageTitle {
  std::string title;
  std::string kind;                                          // "training", "inference": in the names of tracks
  std::vector<std::pair<std::string, std::string>> options;  // names and values
  int64_t front_ns = 0;                                      // of recent calls, outside of the session
};

/// The page of a compiled session. Missing folders are made. Throws E0712.
void writeReportPage(const std::string& path, Session& session, const PageTitle& title);
/// The page of a file that trace() of a model or PVTI_OPTIONS wrote. Throws E0712, E0501.
void writeTracePage(const std::string& path, const std::string& trace);
/// What the page says in words, of the last step alone.
std::vector<std::string> factsOf(const Session& session);

}  // namespace abele::host
