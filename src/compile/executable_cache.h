// A folder of compiled programs, one file each. The key of a file identifies the input of the compilation. Used by
// compiler.cc.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/error.h"
#include "compile/compiled_program.h"
#include "ir/graph.h"

namespace abele::compile {

/// Hash of the captured graph, of every option that changes the compiled program, and of the version: 32 hexadecimal
/// digits.
std::string cacheKey(const ir::Graph& captured, const ProgramOptions& options, const OptimizerSpec& optimizer,
                     const std::vector<ir::ValueId>& kept);

/// Threads, processes: any number of readers and writers at once. A file appears complete or not at all.
class ExecutableCache {
 public:
  /// Makes the folder. Throws E0712 if the folder cannot be made or written.
  explicit ExecutableCache(std::string folder);
  /// Returns nothing if the file does not exist. Warns and returns nothing if it is damaged or has another key.
  std::optional<CompiledProgram> find(const std::string& key) const;
  /// Warns if the file cannot be written; the program runs all the same.
  void store(const std::string& key, const CompiledProgram& program) const;
  /// Warns that the entry of a key cannot be used.
  void warnOf(const std::string& key, const Error& error) const;

  /// Locks this folder against other processes while it lives.
  class Lock {
   public:
    explicit Lock(int file) : file_(file) {}
    Lock(Lock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    ~Lock();

   private:
    int file_;
  };
  /// poll: called about every 50 ms while another process has the lock. If it returns true, the wait ends with E0602.
  Lock lock(const std::function<bool()>& poll = {}) const;

 private:
  std::string pathOf(const std::string& key) const { return folder_ + "/" + key + ".abx"; }
  std::string folder_;
};

}  // namespace abele::compile
