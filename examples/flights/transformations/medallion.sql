-- Silver: the flights, in columns.
CREATE STREAMING TABLE flights_silver AS
SELECT flight.*, partition, offset
FROM STREAM(flights_bronze)
WHERE flight IS NOT NULL;

-- Records that are not flights are kept in another table, with their origin.
CREATE STREAMING TABLE flights_bad AS
SELECT CAST(value AS STRING) AS value, partition, offset, timestamp
FROM STREAM(flights_bronze)
WHERE flight IS NULL;

-- Gold: the data of a report, computed again by every run.
CREATE MATERIALIZED VIEW flights_gold AS
SELECT origin, to_date(time_hour) AS day, count(*) AS flights, count(dep_delay) AS departed, avg(dep_delay) AS delay
FROM flights_silver
GROUP BY origin, to_date(time_hour);
