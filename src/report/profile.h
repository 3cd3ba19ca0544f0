// The profile for enableProfiling and POPLAR_ENGINE_OPTIONS: one JSON file per program (docs/tracing.md).
// Source: spec tools.md, PopVision.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "compile/program_options.h"
#include "session/session.h"

namespace abele::report {

/// Writes the file when a program is compiled or loaded, and after its first runs.
class Profile {
 public:
  /// Makes missing folders. Throws E0712 if the file cannot be written.
  Profile(const compile::ProfileOptions& options, const session::Session& session);
  /// Adds the last run, unless enough runs were recorded. Throws E0712.
  void noteRun(const session::Session& session);

 private:
  void write() const;

  std::string path_;
  int64_t runs_left_;
  std::shared_ptr<nlohmann::ordered_json> content_;
};

}  // namespace abele::report
