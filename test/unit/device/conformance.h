// Shared by the tests of the device contract: a fixture that runs once for every row of backends.def. Nothing here
// depends on the row; a test of arithmetic asks BackendRow::computes. The accelerator is the simulated one, which must
// not find a missing wait.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/backend.h"
#include "programs.h"
#include "simulated_accelerator/simulated.h"

namespace abele::device::testing {

class Conformance : public ::testing::TestWithParam<BackendRow> {
 protected:
  void SetUp() override {
    simulated::setDelays(1);
    simulated::takeFindings();
  }
  void TearDown() override { EXPECT_EQ(simulated::takeFindings(), std::vector<std::string>{}); }
  static std::unique_ptr<DeviceBackend> load(const Program& program, const DeviceOptions& options = {}) {
    return makeBackend(GetParam().name, program.executable, options);
  }
  struct Runner : RunnerOf<DeviceBackend> {
    explicit Runner(const Program& program, const DeviceOptions& options = {})
        : RunnerOf(program, load(program, options)) {}
  };
};

/// "E0704"; "none".
template <class Call>
std::string codeOf(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return errorCodeText(error.code());
  }
  return "none";
}

// Executables may come from files. So the tests verify the executables that they give to a device.
inline void expectVerified(const Program& program) {
  EXPECT_EQ(exe::verify(program.executable), std::vector<std::string>{});
}

inline std::string nameOf(const ::testing::TestParamInfo<BackendRow>& row) { return row.param.name; }

}  // namespace abele::device::testing
