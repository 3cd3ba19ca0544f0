#include "report/profile.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/version.h"
#include "base/whole_file.h"
#include "plan/memory_report.h"

namespace abele::report {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 1;

/// Returns null for a program that was not compiled here, because its plan is unknown.
Json memoryOf(const session::Session& session) {
  try {
    return Json::parse(plan::memoryJson(session.memoryReport()));
  } catch (const UserError& error) {
    if (error.code() != ErrorCode::E0705) throw;
    return {};
  }
}

/// The absolute path, as the present working folder gives it. If that folder was removed, the write below fails and
/// reports that.
std::string absolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::absolute(path, error);
  return error ? path : found.string();
}

}  // namespace

Profile::Profile(const compile::ProfileOptions& options, const session::Session& session)
    : path_(absolutePath(options.path)), runs_left_(options.runs) {
  const session::SessionReport report = session.report();
  content_ = std::make_shared<Json>(
      Json{{"format", "abele-profile"},
           {"version", kVersion},
           {"abele", versionText()},
           {"compilation",
            {{"capture_s", report.capture_s}, {"compile_s", report.compile_s}, {"from_cache", report.from_cache}}},
           {"memory", memoryOf(session)},
           {"execution", Json::array()}});
  write();
}

void Profile::noteRun(const session::Session& session) {
  if (runs_left_ <= 0) return;
  --runs_left_;
  const session::SessionReport report = session.report();
  Json stages = Json::array();
  for (const session::SessionReport::Stage& stage : report.stages)
    stages.push_back({{"name", stage.name},
                      {"device", stage.device},
                      {"replica", stage.replica},
                      {"busy_ns", stage.busy_ns},
                      {"waiting_ns", stage.waiting_ns}});
  (*content_)["execution"].push_back(
      Json{{"step_ns", report.step_ns}, {"bubble", report.bubble}, {"stages", std::move(stages)}});
  write();
}

void Profile::write() const {
  try {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    writeWholeFile(path_, content_->dump(1));
  } catch (const std::exception& error) {
    const auto* typed = dynamic_cast<const Error*>(&error);
    throwUser(ErrorCode::E0712,
              {.what = cat("the profile cannot be written: ", typed ? typed->message().what : error.what()),
               .at = path_,
               .remedy = "Options::enableProfiling(folder) with a folder that can be written"});
  }
}

}  // namespace abele::report
