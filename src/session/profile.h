// The profile that enableProfiling or POPLAR_ENGINE_OPTIONS asks for: a JSON file of a program (docs/tracing.md).
// Source: spec tools.md, PopVision.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "compile/program_options.h"
#include "session/session.h"

namespace abele::host {

/// Written when a program was compiled or loaded, and after its first runs.
class Profile {
 public:
  /// Throws E0712 where the file cannot be written; missing folders are made.
  Profile(const ProfileOptions& options, const Session& session);
  /// Adds the last run, as long as runs are recorded. Throws E0712.
  void noteRun(const Session& session);

 private:
  void write() const;

  std::string path_;
  int64_t runs_left_;
  std::shared_ptr<nlohmann::ordered_json> content_;
};

}  // namespace abele::host
