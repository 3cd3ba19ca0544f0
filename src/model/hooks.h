// The program's hooks around compilation.
#pragma once

namespace abele::model {

/// Runs the hooks around a compilation. The post hooks run even if the compilation fails.
class CompileHooks {
 public:
  CompileHooks();
  ~CompileHooks();
  CompileHooks(const CompileHooks&) = delete;
  CompileHooks& operator=(const CompileHooks&) = delete;
};

}  // namespace abele::model
