// A report as one page: the work of a step, the use of its memory, and advice for more speed. The page is
// report_page.html, with the figures as JSON in it. It needs no network.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace abele::session {
class Session;
}  // namespace abele::session

namespace abele::report {

/// Facts about a model that its session does not know.
struct PageTitle {
  std::string title;
  std::string kind;                                          // "training", "inference"; in the names of tracks
  std::vector<std::pair<std::string, std::string>> options;  // names and values
  int64_t front_ns = 0;                                      // time of recent calls outside of the session
};

/// Writes the page of a compiled session. Makes missing folders. Throws E0712.
void writeReportPage(const std::string& path, session::Session& session, const PageTitle& title);
/// Writes the page of a file that trace() of a model or PVTI_OPTIONS wrote. Throws E0712, E0501.
void writeTracePage(const std::string& path, const std::string& trace);
/// The page's text about the last step.
std::vector<std::string> factsOf(const session::Session& session);

}  // namespace abele::report
