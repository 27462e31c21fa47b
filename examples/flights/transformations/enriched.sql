-- Enrichment: each new flight with its airline's name, as the table has it when the flight comes.
CREATE STREAMING TABLE flights_with_names AS
SELECT flights.*, airlines.name AS airline
FROM STREAM(flights_silver) AS flights
LEFT JOIN airlines ON airlines.carrier = flights.carrier;
