#include "schedule/schedules.h"

#include <algorithm>

#include "schedule/schedule.h"

namespace abele::schedule {

const std::vector<ScheduleRow>& allSchedules() {
#define ABELE_ROW(kind, name, traits, make, held, is_choice)                                           \
  {ScheduleKind::kind,                                                                                 \
   name,                                                                                               \
   traits,                                                                                             \
   is_choice,                                                                                          \
   &make,                                                                                              \
   []([[maybe_unused]] int64_t m, [[maybe_unused]] int64_t p, [[maybe_unused]] int64_t s) -> int64_t { \
     return held;                                                                                      \
   }},
#define ABELE_SCHEDULE(kind, name, traits, make, held, ...) ABELE_ROW(kind, name, traits, make, held, false)
#define ABELE_PIPELINE(kind, name, traits, make, held, ...) ABELE_ROW(kind, name, traits, make, held, true)
  static const std::vector<ScheduleRow> rows = {
#include "schedule/schedules.def"
  };
#undef ABELE_ROW
  return rows;
}

const ScheduleRow& scheduleRow(ScheduleKind kind) { return allSchedules().at(static_cast<size_t>(kind)); }

const char* scheduleName(ScheduleKind kind) { return scheduleRow(kind).name; }

bool parseSchedule(const std::string& name, ScheduleKind& kind) {
  for (const ScheduleRow& row : allSchedules()) {
    if (name != row.name) continue;
    kind = row.kind;
    return true;
  }
  return false;
}

std::vector<std::string> scheduleNames(int traits) {
  std::vector<std::string> names;
  for (const ScheduleRow& row : allSchedules())
    if ((row.traits & traits) != 0) names.emplace_back(row.name);
  return names;
}

}  // namespace abele::schedule
